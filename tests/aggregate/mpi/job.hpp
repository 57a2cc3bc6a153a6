// What every scenario needs of its job: who this rank is, and what it expects of calls.
#pragma once

#include <twinrun/aggregate.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

namespace aggregate_ranks {

extern int me;
extern int ranks;
extern std::string doing;         // for messages
extern std::string stopped_file;  // where they go besides: what is printed just before the end may be lost

[[noreturn]] void stop(const std::string& what);
void expect(bool condition, const std::string& what);
void well(int status, const char* what);
// The call fails with this status, and says these words.
void fails(int status, int wanted, const std::vector<std::string>& words);
// Fails on one rank with this status, on the others because of it.
void fails_on(int rank, int status, int wanted, const std::vector<std::string>& words);
nlohmann::json report(twr_aggregate* aggregate);
twr_aggregate* made(const twr_aggregate_options& options);
// A number from low to high, both included.
inline std::uint64_t pick(std::mt19937_64& random, std::uint64_t low, std::uint64_t high) {
    return low + random() % (high - low + 1);
}
// Nodes as MPI has them, numbered by their first ranks.
std::vector<std::uint32_t> nodes();

}  // namespace aggregate_ranks
