// Where a run came from: what commonly explains why two runs differ.
#pragma once

#include <map>
#include <string>

#include "base/result.hpp"

namespace twinrun {

// Facts by group and name, all as text: {"program": {"path": ..., "arguments": ...}, "host": {...}, ...}.
struct Provenance {
    std::map<std::string, std::map<std::string, std::string>> groups;
    [[nodiscard]] bool empty() const { return groups.empty(); }
};

// What this process can say of itself, in well under a millisecond: never fails, leaves out what it cannot learn, starts no
// GPU context and no library. Of the environment only a list of variables (provenance.cpp), none with a secret's name. The
// floating-point facts are the calling thread's. No other thread may change the environment meanwhile (as with getenv).
Provenance collect_provenance();

// A JSON object of objects of strings, and back. Errors: damaged.
std::string provenance_to_json(const Provenance& provenance);
Result<Provenance> provenance_from_json(const std::string& json);

}  // namespace twinrun
