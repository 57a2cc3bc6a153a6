// Calls of the system's that fail, or end the process, or stop it for good, when a test says so: this program's functions are in front of those that
// the library calls.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace faults {

inline constexpr int kKill = -1;
inline constexpr int kStop = -2;

// The call of this name that comes after `after` others fails with this errno, and all after it; or kKill, kStop. "":
// none does.
void fail(const std::string& function, int after, int error_number);
// Whether one did.
bool failed();
// The next call of this name does this before, once. "": none does.
void act(const std::string& function, std::function<void()> what);

// operator new fails once, in the thread that asked, after `after` others; less than 0: never (again).
void fail_allocation(long after);
bool allocation_failed();

// Writes of zeros are noted instead of done, as long as this is on.
struct Noted {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
};
void note_zeros(bool on);
std::vector<Noted> noted();
// No call moves more than this; 0: any number.
void cut_calls(std::uint64_t most);

}  // namespace faults
