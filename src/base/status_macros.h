// Passing errors on.
#pragma once

#include "lynx/result.h"

#define LYNX_RETURN_IF_ERROR(expression)                                      \
  do {                                                                        \
    if (::lynx::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

#define LYNX_CONCAT_INNER(a, b) a##b
#define LYNX_CONCAT(a, b) LYNX_CONCAT_INNER(a, b)
#define LYNX_ASSIGN_OR_RETURN(declaration, expression) \
  LYNX_ASSIGN_OR_RETURN_INNER(LYNX_CONCAT(result_, __LINE__), declaration, expression)
#define LYNX_ASSIGN_OR_RETURN_INNER(result, declaration, expression) \
  auto result = (expression);                                        \
  if (!result.ok()) return result.status();                          \
  declaration = std::move(result).value()
