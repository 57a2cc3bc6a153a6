/* Sizes and places that programs were compiled with: what a library of the same major version may not change. In C11 and in
 * C++17, on machines whose pointers have 8 bytes. */
#ifndef TWINRUN_TESTS_PINS_H
#define TWINRUN_TESTS_PINS_H

#include <stddef.h>

#ifdef __cplusplus
#define PIN(condition) static_assert(sizeof(void*) != 8 || (condition), #condition)
#else
#define PIN(condition) _Static_assert(sizeof(void*) != 8 || (condition), #condition)
#endif
#define PIN_SIZE(type, bytes) PIN(sizeof(type) == (bytes))
#define PIN_MEMBER(type, member, place) PIN(offsetof(type, member) == (place))

#endif
