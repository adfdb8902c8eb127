// A library with nothing in it: what preloading costs whatever is preloaded.
int fiberthread_bench_empty;
