
__attribute__((noinline)) static int apply(int (*f)(int), int n) { return f(n); }
int call_nested(int k) {
  int add(int n) { return n + k; }
  int (*volatile f)(int) = add;
  return apply(f, 10);
}
