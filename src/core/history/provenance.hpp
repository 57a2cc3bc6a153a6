// Provenance of a run: the facts that commonly explain why two runs differ.
#pragma once

#include <map>
#include <string>

#include "base/result.hpp"

namespace twinrun {

// Facts by group and name, all as text: {"program": {"path": ..., "arguments": ...}, "host": {...},
// ...}.
struct Provenance {
    std::map<std::string, std::map<std::string, std::string>> groups;
    [[nodiscard]] bool empty() const { return groups.empty(); }
};

// Collects facts of this process. Never fails: a fact that cannot be read is left out. Makes no GPU
// context and loads no library. Environment variables are stored by the rules of variables.hpp,
// none with a secret's name. The floating-point facts are those of the calling thread. No other
// thread may change the environment meanwhile (as with getenv()).
Provenance collect_provenance();

// Provenance as a JSON object of objects of strings, without secrets (secrets.hpp), and back.
// Error: damaged.
std::string provenance_to_json(const Provenance& provenance);
Result<Provenance> provenance_from_json(const std::string& json);

}  // namespace twinrun
