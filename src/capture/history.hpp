// The history of a run: a folder of committed steps (run, step, rank, field).
//
//   manifest.jsonl                     first line the run's settings, then one line a committed step; append-only
//   step-0000000010/rank-00000.data    the fields' bytes, each from a multiple of 4096 on
//   step-0000000010/rank-00000.twm     their metadata
//
// A step is written into a folder with a temporary name; files are synced, the folder renamed, its parent synced, and
// only then is its line added to the manifest and synced. A step without a line does not exist. Every line ends with its
// own checksum; an incomplete last line is what a crash leaves and is ignored, a damaged line elsewhere is an error.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compare/build.hpp"
#include "compare/device_array.hpp"
#include "metadata/metadata.hpp"

namespace twinrun {

inline constexpr int kHistoryVersion = 1;

struct HistorySettings {
    Tolerance tolerance;
    unsigned residue_bits = 4;
    std::uint32_t chunk_bytes = kSmallestChunk;
    DigestKind kind = DigestKind::linear;
    bool keep_data = true;  // false: metadata only
};

struct RankFiles {
    std::uint32_t rank = 0;
    std::string data;  // name in the step's folder; empty: metadata only
    std::uint64_t data_bytes = 0;
    std::string metadata;
    std::uint64_t metadata_bytes = 0;
    std::uint64_t header_checksum = 0;  // XXH3-64 of the metadata file's header, which seals the rest of it
};

struct HistoryStep {
    std::int64_t step = 0;
    std::string folder;
    std::vector<RankFiles> ranks;
};

// What a manifest says. Reading it opens no other file.
struct History {
    std::string path;
    HistorySettings settings;
    std::vector<HistoryStep> steps;  // ascending
    bool torn = false;               // the last line was incomplete: a crash while it was written

    static bool exists(const std::string& path);  // a folder with a manifest
    static Result<History> open(const std::string& path);
};

// One line of a manifest, without its end of line: decode checks the checksum.
std::string seal_line(std::string json_object);
Result<std::string> open_line(const std::string& line);

// An array to capture: C order, dense or with a constant stride between items, or one on a device. The memory is read during
// capture only.
struct CapturedField {
    std::string name;
    DType dtype = DType::f32;
    std::vector<std::uint64_t> shape;
    const void* data = nullptr;
    std::uint64_t stride = 0;  // bytes; 0: dense
    ArrayOrder order = ArrayOrder::row_major;
    bool own_tolerance = false;  // else the run's
    Tolerance tolerance;
    // Set: the elements are these, of the same type and as many; data and stride are not used. Digests are made on the
    // device. Only if the history keeps data do elements come to the host; else there are no checksums of them either.
    std::optional<DeviceArray> device;
};

// The field of a step's metadata, before its data is seen. Errors: plan_field's.
Result<FieldMetadata> plan_captured(const CapturedField& field, const HistorySettings& settings);

struct CaptureFacts {
    double seconds = 0;
    std::uint64_t data_bytes = 0;
    std::uint64_t metadata_bytes = 0;
};

// Writes a history, one process. Not thread-safe.
class HistoryWriter {
   public:
    enum class Existing { refuse, append, replace };
    static Result<std::unique_ptr<HistoryWriter>> create(FileSystem& system, const std::string& path,
                                                         const HistorySettings& settings,
                                                         Existing existing = Existing::refuse);
    // Commits one step, whole or not at all. Errors: a step that is there already, two fields of one name, storage.
    Result<CaptureFacts> capture(std::int64_t step, const std::vector<CapturedField>& fields,
                                 const StreamOptions& options = {});
    [[nodiscard]] const History& history() const { return history_; }

   private:
    explicit HistoryWriter(FileSystem& system) : system_(system) {}
    Result<> append_line(const std::string& json_object);
    Result<> drop_torn_line();
    FileSystem& system_;
    History history_;
};

}  // namespace twinrun
