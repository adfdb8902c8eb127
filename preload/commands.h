// What the launcher does beside running programs: `fiberthread NAME …`. Like main(); the first argument is NAME.
#pragma once

int main_dump(int argc, char** argv);
int main_top(int argc, char** argv);
