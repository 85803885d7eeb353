#include <cstdio>
int main() { std::puts("lynx"); }
