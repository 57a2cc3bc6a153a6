// Histories and files of other programs into records, and back.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "capture/history.hpp"
#include "capture/recorder.hpp"

namespace twinrun {

struct PackOptions {
    RecordSettings settings;
    std::uint64_t table_bytes = 0;  // RecorderOptions
    bool verify = false;
    int threads = 1;
    unsigned hash_bits = 128;  // for tests
    // A record of the same settings that is there goes on: steps that it has are left as they are. Else it is an error.
    bool append = false;
    std::string against;  // path of another record; settings.against becomes it
};

struct PackedStep {
    std::int64_t step = 0;
    std::uint32_t rank = 0;
    std::uint64_t full_bytes = 0;
    Recorder::Recorded recorded;
};
// Called for each step of each rank when it is on storage; false: stop there (ErrorCode::interrupted).
using PackProgress = std::function<bool(const PackedStep&)>;

// A history whose data was kept, or a record with other settings. Each field's bytes are checked before they are packed. One
// rank's data of one step is in memory at a time. Errors: damaged; invalid_argument; those of storage.
Result<> pack_history(FileSystem& system, const std::string& source, const std::string& target,
                      const PackOptions& options, const PackProgress& progress);

// Files of other programs, as bytes.
struct PackedFile {
    std::string name;  // in the record: a relative path
    std::string path;
    std::string key;  // what the same file of other steps has too; unique in a step
};
struct FilesOfStep {
    std::int64_t step = 0;
    std::vector<PackedFile> files;
};
Result<> pack_files(FileSystem& system, const std::vector<FilesOfStep>& steps, const std::string& target,
                    const PackOptions& options, const PackProgress& progress);

// Gives steps of a record back, every byte checked: a history of captures as a history in `target` (made, or appended to), other
// programs' files under their names in target/step-N, or in `target` itself if `flat` (then one step). Files that are there are
// an error.
Result<std::vector<std::string>> unpack_steps(FileSystem& system, const std::string& record,
                                              const std::vector<std::int64_t>& steps,
                                              const std::string& target, bool flat, int threads);

// Which steps of a rank cannot be given back, and why: every byte that they need is read. Steps that need a damaged difference
// are named with it.
struct RecordProblem {
    std::vector<std::int64_t> steps;
    std::string what;
};
Result<std::vector<RecordProblem>> check_record(const std::string& path, std::uint32_t rank, int threads);

}  // namespace twinrun
