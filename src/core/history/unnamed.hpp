// Finds complete files of steps that no journal names. They are the only trace of steps whose
// journal was cut or removed.
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
    // true: the journal has no first line, or is missing: somebody removed or emptied it, because a
    // rank makes it before its first file. false: the journal was cut, or a run that was killed has
    // left the files.
    bool lost = false;
};

// Unnamed steps of a history, or of a rank's part of one, ascending by step and rank. Without steps
// of ranks whose journal a run is writing now.
Result<std::vector<UnnamedStep>> unnamed_steps(const std::string& path);

// Error: damaged, if a journal with steps is lost; or if there are any unnamed steps, and no
// journal of the history names a step (`empty`).
Result<> check_named(const std::string& path, bool empty);

}  // namespace twinrun
