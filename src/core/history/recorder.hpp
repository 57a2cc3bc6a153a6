// Writes the differences of one rank's steps: deduplication, packing, and what keeps restore quick.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dedup/deduplicator.hpp"
#include "device/device.hpp"
#include "record/delta_file.hpp"
#include "record/settings.hpp"
#include "restore/chain.hpp"

namespace twinrun {

struct RecorderOptions {
    RecordSettings settings;
    std::uint64_t table_bytes = 0;  // of the table of hashes; 0: no limit
    bool verify = false;            // bytes, not hashes alone, say that chunks are equal; host memory only
    int threads = 1;
    int device = kHostMemory;  // where the images are
    unsigned hash_bits = 128;  // for tests: DedupOptions
};

// Not thread-safe.
class Recorder {
   public:
    // locate: of differences that are there already, and of those of the record that this one is against. first_ordinal: larger
    // than all of these.
    static Result<std::unique_ptr<Recorder>> create(const RecorderOptions& options,
                                                    RecordChain::Locate locate, std::uint32_t first_ordinal);
    ~Recorder();

    // Payload of earlier differences, for copies: the newest as far as the table's limit goes, and as far as they can be read.
    // ordinals: ascending.
    Result<> learn(std::span<const std::uint32_t> ordinals);
    // The next step is told by what differs from this earlier one, which is read for it; if it cannot be read, as if this had
    // not been called.
    Result<> rebase(std::uint32_t ordinal);

    struct Recorded {
        std::uint32_t ordinal = 0;
        std::uint64_t bytes = 0;  // of the file
        std::uint64_t header_checksum = 0;
        std::uint64_t entry_bytes = 0;    // all but payload
        std::uint64_t payload_bytes = 0;  // as kept
        std::uint64_t chunks = 0;
        std::uint64_t changed_chunks = 0;
        std::uint64_t payload_chunks = 0;
        std::uint64_t collisions = 0;
    };
    // Writes the step's difference to `path` on `system`: there, and synced, when it returns (its folder is not). directory: its segments
    // are those of `image`, in order; their content is not yet known. Segments are brought to options.device for it. After an
    // error, the next step stands alone.
    Result<Recorded> record(FileSystem& system, const std::string& path, RecordDirectory directory,
                            std::span<const ImageSegment> image);
    // From now on what is new is found in host memory, and the next step stands alone. False: so it was already, or there is not
    // even host memory for it.
    bool move_to_host();
    // Whether the last step could not be recorded for reasons of the device: host memory may do.
    [[nodiscard]] bool device_failed() const { return device_failed_; }
    // Steps recorded so far may be lost: the next one stands alone.
    void forget();
    [[nodiscard]] std::uint32_t next_ordinal() const { return next_; }
    [[nodiscard]] DedupFacts facts() const { return deduplicator_->facts(); }
    [[nodiscard]] RecordChain& chain() { return *chain_; }

   private:
    class Sink;
    Recorder(const RecorderOptions& options, RecordChain::Locate locate, std::uint32_t first);
    Result<> make_deduplicator();
    Result<> bring(std::vector<ImageSegment>& image);
    Result<std::uint32_t> depth_of(std::uint32_t ordinal);
    Result<> stand_alone(Difference& difference, std::uint64_t payload_bytes);

    RecorderOptions options_;
    RecordChain::Locate locate_;
    std::uint32_t next_;
    std::map<std::uint32_t, std::string> own_;      // paths of differences written here
    std::map<std::uint32_t, std::uint32_t> depth_;  // XORs behind each other, at most
    std::unique_ptr<RecordChain> chain_;
    std::unique_ptr<Deduplicator> deduplicator_;
    DeviceMemory brought_;
    bool device_failed_ = false;
    std::uint32_t block_bytes_ = 0;  // PayloadSettings
    std::uint32_t steps_since_map_ = 0;
    std::uint64_t bytes_since_map_ = 0;
};

}  // namespace twinrun
