// Whole files of steps that no journal names: a journal that was cut or removed takes its steps with it, and nothing else shows it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace twinrun {

struct UnnamedStep {
    std::int64_t step = 0;
    std::string folder;
    std::uint32_t rank = 0;
    std::string journal;  // the file that should name it
    // It is missing, or not even its first line is there: it was removed or emptied, as a rank begins it before its first file. Else
    // a run that was killed may have left the files, or the journal was cut.
    bool lost = false;
};

// Of a history, or a rank's part of one: ascending by step and rank. Files of a run that writes it now are not among them.
Result<std::vector<UnnamedStep>> unnamed_steps(const std::string& path);

// Error if there are steps of a lost journal; or if there are some, and the history has none that a journal names (`empty`).
Result<> check_named(const std::string& path, bool empty);

}  // namespace twinrun
