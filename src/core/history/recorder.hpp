// Writes one rank's steps as differences: deduplication, compression, and limits that keep restores
// fast.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dedup/deduplicator.hpp"
#include "device/device.hpp"
#include "record/delta_writer.hpp"
#include "record/settings.hpp"
#include "restore/chain.hpp"

namespace twinrun {

struct RecorderOptions {
    RecordSettings settings;
    std::uint64_t table_bytes = 0;  // limit of the table of hashes; 0: none
    // Chunks of equal hashes are compared byte by byte; host memory only.
    bool verify = false;
    int threads = 1;
    int device = kHostMemory;  // where deduplication works; other images are copied there
    unsigned hash_bits = 128;  // for tests: DedupOptions
};

// Owned by a StepRecorder or a RankRecord. Not thread-safe.
class Recorder {
   public:
    // locate: the file of an existing difference of this record, or of the record that it is
    // against.
    // first_ordinal: of the next step; larger than those of all existing differences.
    static Result<std::unique_ptr<Recorder>> create(const RecorderOptions& options,
                                                    RecordChain::Locate locate, std::uint32_t first_ordinal);
    ~Recorder();

    // Reads earlier differences, so that later steps can refer to their chunks: the newest ones
    // that fit into the table. Skips those that cannot be read. ordinals: ascending.
    Result<> learn(std::span<const std::uint32_t> ordinals);
    // Makes an earlier step, which is read for this, the base of the next one. No effect if it
    // cannot be read.
    Result<> rebase(std::uint32_t ordinal);

    struct Recorded {
        std::uint32_t ordinal = 0;
        std::uint64_t bytes = 0;  // of the file
        std::uint64_t header_checksum = 0;
        std::uint64_t entry_bytes = 0;     // of the file, without payload
        std::uint64_t payload_bytes = 0;   // of the file, compressed
        std::uint64_t chunks = 0;          // of the step
        std::uint64_t changed_chunks = 0;  // that differ from the base
        std::uint64_t payload_chunks = 0;  // in the file
        std::uint64_t collisions = 0;      // chunks of equal hashes and different bytes
    };
    // Writes the step's difference to `path`, and syncs it, but not its folder. directory: has the
    // segments of `image`, in order; their content checksums are set here. Segments that are
    // elsewhere are copied to options.device. After an error, the next step does not refer to
    // earlier ones.
    Result<Recorded> record(FileSystem& system, const std::string& path, RecordDirectory directory,
                            std::span<const ImageSegment> image);
    // From now on deduplication works in host memory; the next step does not refer to earlier ones.
    // false: it did so already, or there is not enough host memory.
    bool move_to_host();
    // Whether the last record() failed because of the device: after move_to_host() it may succeed.
    [[nodiscard]] bool device_failed() const { return device_failed_; }
    // Steps recorded so far may be lost: the next step does not refer to them.
    void forget();
    // The ordinal of the next step.
    [[nodiscard]] std::uint32_t next_ordinal() const { return next_; }
    [[nodiscard]] DedupFacts facts() const { return deduplicator_->facts(); }
    [[nodiscard]] RecordChain& chain() { return *chain_; }

   private:
    class Sink;
    Recorder(const RecorderOptions& options, RecordChain::Locate locate, std::uint32_t first);
    Result<> make_deduplicator();
    Result<> bring(std::vector<ImageSegment>& image);
    Result<std::uint32_t> depth_of(std::uint32_t ordinal);
    // Bytes that reading a chunk takes, by the blocks of a difference.
    struct Reads {
        std::uint32_t block_chunks = 1;
        std::vector<std::uint32_t> blocks;  // DifferenceWriter::block_reads(); empty: as it is
        [[nodiscard]] std::uint32_t of(Location at, std::uint32_t chunk_bytes) const;
    };
    // Of a difference whose depth is within the limit: so this ends soon. Stays until trim_reads().
    Result<const Reads*> reads_of(std::uint32_t ordinal);
    Result<Reads> reads_in_file(std::uint32_t ordinal);
    void trim_reads();
    Result<std::uint64_t> alone_in_files(std::uint32_t ordinal, std::uint64_t chunks);
    void plan_next(const StepOutcome& outcome, const DifferenceWriter& writer, std::uint64_t payload_bytes,
                   std::uint32_t depth);
    Result<> limit_chain(Difference& difference, std::uint64_t payload_bytes);

    RecorderOptions options_;
    RecordChain::Locate locate_;
    std::uint32_t next_;
    std::map<std::uint32_t, DifferencePlace> own_;  // the differences that this object wrote
    // of each difference, the longest chain of XORs to read a chunk
    std::map<std::uint32_t, std::uint32_t> depth_;
    std::map<std::uint32_t, Reads> reads_;  // of differences that bases lie in
    std::unique_ptr<RecordChain> chain_;
    std::unique_ptr<Deduplicator> deduplicator_;
    // Bytes of payload that a whole step takes without XOR, about; 0: not known.
    std::uint64_t alone_bytes_ = 0;
    bool next_alone_ = false;  // the next step refers to no earlier one
    DeviceMemory brought_;     // copies of segments that were elsewhere
    bool device_failed_ = false;
    std::unique_ptr<DifferenceTools> tools_;
    std::uint32_t block_bytes_ = 0;      // PayloadSettings::block_bytes
    std::uint32_t steps_since_map_ = 0;  // steps since the last one without a base
    std::uint64_t bytes_since_map_ = 0;  // written since then
};

}  // namespace twinrun
