// LYNX_CHECK: a broken contract of our own. Never reachable from input; input errors are Status.
#pragma once

#include <cstdio>
#include <cstdlib>

#define LYNX_CHECK(condition)                                                               \
  do {                                                                                      \
    if (!(condition)) {                                                                     \
      std::fprintf(stderr, "%s:%d: broken contract: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                         \
    }                                                                                       \
  } while (false)
