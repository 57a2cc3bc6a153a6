// Functions for the Python package, so that rules are parsed in one place.
#include <cstring>

#include "interpose/rules.hpp"
#include "interpose/wrap.hpp"

using namespace twinrun::interpose;

// Returns the number of rules; -1 if they are invalid, with the reason in `why` (size bytes,
// terminated by 0).
TWR_WRAP int twr_interpose_check(const char* rules, char* why, std::size_t size) {
    static Rules read;
    if (parse_rules(rules, read)) return static_cast<int>(read.count);
    if (size > 0) {
        std::strncpy(why, read.error, size - 1);
        why[size - 1] = 0;
    }
    return -1;
}

// Name and group of the call with this number; null after the last.
TWR_WRAP const char* twr_interpose_call(int number) {
    return number >= 0 && static_cast<std::size_t>(number) < kCalls ? kCallInfos[number].name : nullptr;
}
TWR_WRAP const char* twr_interpose_group(int number) {
    return number >= 0 && static_cast<std::size_t>(number) < kCalls
               ? kGroupNames[static_cast<std::size_t>(kCallInfos[number].group)]
               : nullptr;
}
