// Packs histories, and files of other programs, into records. unpack.hpp restores them.
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
    std::uint64_t table_bytes = 0;  // these three: as in RecorderOptions
    bool verify = false;
    int threads = 1;
    unsigned hash_bits = 128;  // for tests
    // Appends to an existing record of the same settings; otherwise an existing one is an error.
    bool append = false;
    // Stores a step that the record has, and that changed since it was packed, as a new version;
    // otherwise this is an error, before anything is written.
    bool update = false;
    std::string against;  // path of another record, for settings.against; "": none
};

struct PackedStep {
    std::int64_t step = 0;
    std::uint32_t rank = 0;
    std::uint64_t full_bytes = 0;
    bool new_version = false;  // PackOptions::update
    Recorder::Recorded recorded;
};
// Called for each step of each rank when it is committed. false: packing stops there with
// ErrorCode::interrupted.
using PackProgress = std::function<bool(const PackedStep&)>;

// Packs the steps of a history with data, or of a record, into the record at `target`. Checks the
// bytes of each field before it packs them. One rank's data of one step is in memory at a time.
// Errors: damaged; invalid_argument; interrupted; those of storage.
Result<> pack_history(FileSystem& system, const std::string& source, const std::string& target,
                      const PackOptions& options, const PackProgress& progress);

// A file of another program, stored as bytes; a link, stored as the path that it contains; or an
// empty folder.
struct PackedFile {
    std::string name;  // in the record: a relative path of any bytes
    std::string path;  // on storage
    std::string key;   // identifies the same file in several steps; unique in a step
    RecordFileKind kind = RecordFileKind::file;
    std::string to;  // path that a link contains
};
struct FilesOfStep {
    std::int64_t step = 0;
    std::vector<PackedFile> files;
};
// Packs files of other programs. With PackOptions::append, files that the record has and that no
// longer exist stay in these steps, and in new versions of them.
Result<> pack_files(FileSystem& system, const std::vector<FilesOfStep>& steps, const std::string& target,
                    const PackOptions& options, const PackProgress& progress);

}  // namespace twinrun
