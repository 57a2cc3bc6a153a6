// Histories and files of other programs into records, and back.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "history/history.hpp"
#include "history/record_store.hpp"
#include "history/recorder.hpp"

namespace twinrun {

struct PackOptions {
    RecordSettings settings;
    std::uint64_t table_bytes = 0;  // RecorderOptions
    bool verify = false;
    int threads = 1;
    unsigned hash_bits = 128;  // for tests
    // A record of the same settings that is there goes on: else it is an error. A step that it has and that is not what it was
    // when it was packed is one too, before anything is written; with `update` it becomes a new version of the step.
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
// Called for each step of each rank when it is on storage; false: stop there (ErrorCode::interrupted).
using PackProgress = std::function<bool(const PackedStep&)>;

// A history whose data was kept, or a record with other settings. Each field's bytes are checked before they are packed. One
// rank's data of one step is in memory at a time. Errors: damaged; invalid_argument; those of storage.
Result<> pack_history(FileSystem& system, const std::string& source, const std::string& target,
                      const PackOptions& options, const PackProgress& progress);

// Files of other programs, as bytes; links, as their text; folders that nothing is in.
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
// With PackOptions::append, files that are gone stay in the steps that the record has, also in new versions of them.
Result<> pack_files(FileSystem& system, const std::vector<FilesOfStep>& steps, const std::string& target,
                    const PackOptions& options, const PackProgress& progress);

// Gives steps of a record back, every byte checked: a history of captures as a history in `target` (made, or appended to), other
// programs' files under their names in target/step-N, or in `target` itself if `flat` (then one step). Whatever is there stays: it
// is an error where it has the name of a file, and a link in `target` is never followed. memory: RecordStore::stream.
Result<std::vector<std::string>> unpack_steps(FileSystem& system, const std::string& record,
                                              const std::vector<std::int64_t>& steps,
                                              const std::string& target, bool flat, int threads,
                                              std::uint64_t memory = kRecordMemory);

// Bytes [offset, offset + bytes) of a segment of a step into a file of their own, which must not be there.
Result<> write_part(FileSystem& system, RecordStore& store, std::int64_t step, const std::string& segment,
                    std::uint64_t offset, std::uint64_t bytes, const std::string& path, std::uint64_t memory);

// Which steps of a rank cannot be given back, and why: every byte that they need is read. Steps that need a damaged difference
// are named with it.
struct RecordProblem {
    std::vector<std::int64_t> steps;
    std::string what;
};
Result<std::vector<RecordProblem>> check_record(const std::string& path, std::uint32_t rank, int threads,
                                                std::uint64_t memory = kRecordMemory);

}  // namespace twinrun
