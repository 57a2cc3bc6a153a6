// Reads steps back from the differences of a record.
//
// A step's map says at which Location each of its chunks lies. It is found from the step's
// difference backwards, along its bases, until no chunk is left. Then each payload block that holds
// a needed chunk is read, checked and unpacked once, whatever the number of steps between; where a
// block was kept XORed with what its chunks had replaced, these follow, to the depth that the
// record was written with.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/team.hpp"
#include "record/delta_file.hpp"
#include "restore/block_pass.hpp"

namespace twinrun {

// A step, ready to be read.
struct StepMap {
    std::uint32_t ordinal = 0;
    std::uint32_t chunk_bytes = 0;
    RecordDirectory directory;
    std::vector<std::uint64_t> firsts;  // chunk of each segment, and the end
    std::vector<Run> runs;              // of the whole image, ascending

    [[nodiscard]] const RecordSegment* find(std::string_view name) const;
    // Bytes of a segment's runs on average. 0: it has none.
    [[nodiscard]] std::uint64_t mean_run(std::size_t segment) const;
};

// Thread-safe.
class RecordChain {
   public:
    // Where the difference of an ordinal is kept, or those of its chunks that are left of it.
    // Errors: not_found.
    using Locate = std::function<Result<DifferencePlace>(std::uint32_t ordinal)>;
    RecordChain(Locate locate, int threads);
    ~RecordChain();

    // Errors, of all below: not_found: only chunks of it are left; damaged, also where a file is
    // missing. The text names the file.
    Result<std::shared_ptr<DifferenceFile>> open(std::uint32_t ordinal);
    Result<StepMap> map(std::uint32_t ordinal);
    // With the runs of one segment alone (none where there is no such segment): it opens only the
    // differences that these need.
    Result<StepMap> map_of(std::uint32_t ordinal, std::string_view segment);
    // Files and segments of a step: no other difference is opened.
    Result<RecordDirectory> directory(std::uint32_t ordinal);
    // The runs of an image whose difference is not written yet.
    Result<std::vector<Run>> resolve(const RecordDirectory& directory, std::uint32_t chunk_bytes,
                                     const std::vector<Run>& runs, std::uint32_t base);
    // Differences from this one on until there is no base: what map() has to look into.
    Result<std::vector<std::uint32_t>> bases(std::uint32_t ordinal);

    // Bytes [offset, offset + to.size()) of a segment, with all threads.
    Result<> read(const StepMap& map, std::size_t segment, std::uint64_t offset, std::span<std::byte> to);
    // The same with the calling thread alone, while others read too. A block at the border of what
    // two threads read is unpacked twice.
    Result<> read(const StepMap& map, std::size_t segment, std::uint64_t offset, std::span<std::byte> to,
                  ReadScratch& own);
    // Calls work(i, scratch) once for each i below `count`, on all threads, until a call fails: for
    // the read() of one thread. It must not call what uses all threads. Returns the first error.
    using Work = std::function<Result<>(std::size_t i, ReadScratch& scratch)>;
    Result<> for_each(std::size_t count, const Work& work);
    [[nodiscard]] int threads() const { return threads_; }
    // A whole segment, and its content's checksum: damaged where it is another than was recorded.
    Result<> read_segment(const StepMap& map, std::size_t segment, std::span<std::byte> to);
    // The same in parts: the sum over all of them is the content's checksum. offset: in the
    // segment, a multiple of the chunks' size; except for the last part, bytes.size() too.
    [[nodiscard]] std::uint64_t content_of(const StepMap& map, std::uint64_t offset,
                                           std::span<const std::byte> bytes);
    // The same on the calling thread.
    [[nodiscard]] static std::uint64_t content_of_part(const StepMap& map, std::uint64_t offset,
                                                       std::span<const std::byte> bytes);
    static Result<> check_content(const StepMap& map, std::size_t segment, std::uint64_t content);
    // Payload chunks as they were before they were kept: to.size() is `count` chunks.
    Result<> read_payload(Location first, std::uint64_t count, std::uint32_t chunk_bytes,
                          std::span<std::byte> to);
    // The same with the calling thread alone.
    Result<> read_payload(Location first, std::uint64_t count, std::uint32_t chunk_bytes,
                          std::span<std::byte> to, ReadScratch& own);
    // The same of many: run.count chunks from run.source on, to chunk run.begin of `to`.
    Result<> read_payload(std::span<const Run> runs, std::uint32_t chunk_bytes, std::span<std::byte> to);
    // Differences that this step needs bytes of, with those that they were XORed with.
    Result<std::vector<std::uint32_t>> needs(const StepMap& map);

    // Files that were opened are closed; a difference may be another file now.
    void forget();

    // Payload that was read so far: blocks, and their bytes in the files.
    struct Reads {
        std::uint64_t blocks = 0;
        std::uint64_t bytes = 0;
    };
    [[nodiscard]] Reads reads() const { return {reads_.blocks, reads_.bytes}; }

   private:
    // Chunks [begin, begin + count) of an image.
    struct Stretch {
        std::uint64_t begin;
        std::uint64_t count;
    };
    Result<std::shared_ptr<DifferenceFile>> open_step(std::uint32_t ordinal);
    Result<StepMap> map_some(std::uint32_t ordinal, const std::string_view* segment);
    Result<std::vector<Run>> resolve(const RecordDirectory& directory, std::uint32_t chunk_bytes,
                                     const std::vector<Run>& runs, std::uint32_t base, Stretch wanted);
    struct Request;
    struct Workers;
    static std::vector<Request> requests_of(const StepMap& map, std::size_t segment, std::uint64_t begin,
                                            std::uint64_t stop);
    // own: null: with all threads.
    Result<> fetch(std::span<const Request> requests, std::uint32_t chunk_bytes, std::byte* to,
                   ReadScratch* own = nullptr);
    Result<> fetch_payload(Location first, std::uint64_t count, std::uint32_t chunk_bytes,
                           std::span<std::byte> to, ReadScratch* own);
    Result<> fetch_bytes(const StepMap& map, std::size_t segment, std::uint64_t offset,
                         std::span<std::byte> to, ReadScratch* own);
    static void join(std::vector<Request>& requests, BlockPass& pass);
    Result<> find_blocks(std::uint32_t ordinal, const std::vector<Request>& requests,
                         std::uint32_t chunk_bytes, BlockPass& found, std::vector<Request>& next);
    [[nodiscard]] std::size_t files_at_once(int passes) const;
    Result<> read_blocks(BlockPass& blocks, ReadScratch* own);
    static void add_bases(const Difference& difference, std::uint64_t position, std::uint64_t count,
                          std::uint64_t times, bool repeat, std::uint64_t to, std::size_t& near,
                          std::vector<Request>& next);
    Locate locate_;
    const int threads_;
    const std::size_t most_files_;  // that are kept open
    std::mutex mutex_;              // of files_
    std::map<std::uint32_t, std::shared_ptr<DifferenceFile>> files_;
    std::mutex opening_;  // of index_
    Compressor index_;
    std::mutex reading_;  // of workers_
    std::unique_ptr<Workers> workers_;
    ReadCounts reads_;
};

}  // namespace twinrun
