#include "preload/commands.h"
int main_top(int, char**) { return 1; }
