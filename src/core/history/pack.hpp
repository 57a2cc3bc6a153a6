// Histories, and files of other programs, into records. unpack.hpp gives them back.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "history/recorder.hpp"
#include "platform/file_io.hpp"

namespace twinrun {

struct PackOptions {
    RecordSettings settings;
    std::uint64_t table_bytes = 0;  // RecorderOptions
    bool verify = false;
    int threads = 1;
    unsigned hash_bits = 128;  // for tests
    // A record of the same settings that is there goes on; without this, it is an error. A step
    // that the record has and that changed since it was packed is an error too, before anything is
    // written; with `update` it becomes a new version of the step.
    bool append = false;
    bool update = false;
    std::string against;  // path of another record; settings.against becomes it
};

struct PackedStep {
    std::int64_t step = 0;
    std::uint32_t rank = 0;
    std::uint64_t full_bytes = 0;
    bool new_version = false;  // PackOptions::update
    Recorder::Recorded recorded;
};
// Called for each step of each rank when it is on storage; false: stop there
// (ErrorCode::interrupted).
using PackProgress = std::function<bool(const PackedStep&)>;

// A history whose data was kept, or a record with other settings. Each field's bytes are checked
// before they are packed. One rank's data of one step is in memory at a time. Errors: damaged;
// invalid_argument; those of storage.
Result<> pack_history(FileSystem& system, const std::string& source, const std::string& target,
                      const PackOptions& options, const PackProgress& progress);

// A file of another program, as bytes; a link, as its text; or a folder that is empty.
struct PackedFile {
    std::string name;  // in the record: a relative path, of any bytes
    std::string path;
    std::string key;  // what the same file of other steps has too; unique in a step
    RecordFileKind kind = RecordFileKind::file;
    std::string to;  // of a link
};
struct FilesOfStep {
    std::int64_t step = 0;
    std::vector<PackedFile> files;
};
// With PackOptions::append, files that are gone stay in the steps that the record has, and in new
// versions of these steps.
Result<> pack_files(FileSystem& system, const std::vector<FilesOfStep>& steps, const std::string& target,
                    const PackOptions& options, const PackProgress& progress);

}  // namespace twinrun
