// Reads one rank's record: its journal, that of the record it is against, and the chain of their
// differences. Another process may compact the record meanwhile: if a difference is not where the
// journal says, the journal is read again.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "history/history.hpp"
#include "restore/chain.hpp"

namespace twinrun {

// Bytes; unit of RecordStore::stream().
inline constexpr std::uint64_t kRecordPart = std::uint64_t{1} << 20;
// Bytes; the default of `memory`.
inline constexpr std::uint64_t kRecordMemory = std::uint64_t{1} << 30;

// Shared by its users. Thread-safe.
class RecordStore {
   public:
    // path: a history, or a rank's part of one on a node-local tier. Errors: not_found; damaged;
    // invalid_argument: it is not a record.
    static Result<std::shared_ptr<RecordStore>> open(const std::string& path, std::uint32_t rank,
                                                     int threads = 1);

    // The record that one at `path` with these settings is against. Error, besides: damaged:
    // another record is there.
    static Result<std::shared_ptr<RecordStore>> open_parent(const std::string& path,
                                                            const RecordSettings& settings,
                                                            std::uint32_t rank, int threads);

    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] const RecordSettings& settings() const { return settings_; }
    [[nodiscard]] Journal journal() const;  // as it was last read
    // Ordinals of the differences of this record, on this tier and the next, and of the record that
    // it is against; ascending.
    [[nodiscard]] std::vector<std::uint32_t> ordinals() const;
    // Where a difference is. Error: damaged: no journal names it.
    [[nodiscard]] Result<DifferencePlace> locate(std::uint32_t ordinal) const;
    // A file of differences, of these ordinals, that was changed after the last line of the journal
    // that names it, or that is not the one which the journal names; nullopt: none. A journal is
    // written after the files that it names, so somebody else changed, copied or exchanged the
    // file, and only its content tells what it holds. Looks once, until the journals are read
    // again.
    [[nodiscard]] std::optional<std::string> changed_file() const;
    [[nodiscard]] RecordChain& chain() { return *chain_; }
    // The record that this one is against, or null.
    [[nodiscard]] const std::shared_ptr<RecordStore>& parent() const { return parent_; }

    // Where the chunks of a step are. Errors: not_found: this rank has no such step, or only its
    // metadata; damaged.
    Result<StepMap> map(std::int64_t step);
    // The same of one segment: RecordChain::map_of().
    Result<StepMap> map_of(std::int64_t step, const std::string& segment);
    // Files and segments of a step. Errors: the same.
    Result<RecordDirectory> directory(std::int64_t step);
    // The same of a difference, which stays that of its attempt at the step when the step is
    // captured again. Error: damaged: no journal names it.
    Result<StepMap> map_of_difference(std::uint32_t ordinal, const std::string& segment);
    Result<RecordDirectory> directory_of_difference(std::uint32_t ordinal);
    // Reads bytes of a segment from `offset` on. Only read_segment(), which reads all of it, checks
    // the checksum of its content.
    Result<> read(const StepMap& map, std::size_t segment, std::uint64_t offset, std::span<std::byte> to);
    Result<> read_segment(const StepMap& map, std::size_t segment, std::span<std::byte> to);
    // Calls `take` with bytes [offset, offset + bytes) of a segment, in order; each part but the
    // last ends at a multiple of kRecordPart. memory: limit in bytes for one part and what reading
    // it needs; a part of kRecordPart is always read. If this is the whole segment, the checksum of
    // its content is compared after the last part.
    using Take = std::function<Result<>(std::uint64_t offset, std::span<const std::byte> part)>;
    Result<> stream(const StepMap& map, std::size_t segment, std::uint64_t offset, std::uint64_t bytes,
                    std::uint64_t memory, const Take& take);

    // Bytes of a segment from `offset` on. Several threads call it at once, in any order.
    using TakePart =
        std::function<Result<>(std::size_t segment, std::uint64_t offset, std::span<const std::byte> part)>;
    // Calls `take` with all bytes of these segments, in parts that begin at multiples of
    // kRecordPart. After files were exchanged it begins again, and calls `take` for parts that it
    // had. memory: as for stream(). check_content: the checksum of each segment's content is
    // compared after its last part; without it `take` must check the bytes.
    Result<> each_part(const StepMap& map, std::span<const std::size_t> segments, std::uint64_t memory,
                       bool check_content, const TakePart& take);

   private:
    RecordStore() = default;
    Result<std::uint32_t> ordinal_of_step(std::int64_t step) const;
    struct PartWork;
    Result<> take_all(PartWork& work);
    Result<> take_together(PartWork& work, std::size_t segment);
    // The ID that a record must have, and who says so. No ID: any will do.
    struct Expected {
        HistoryId id;
        std::string by;
    };
    static Result<std::shared_ptr<RecordStore>> open(const std::string& path, std::uint32_t rank, int threads,
                                                     int level, Expected expected);
    static Result<std::shared_ptr<RecordStore>> open_parent(const std::string& path,
                                                            const RecordSettings& settings,
                                                            std::uint32_t rank, int threads, int level);
    Result<> load();
    template <class Work>
    auto retry(Work work) -> decltype(work());
    [[nodiscard]] std::uint64_t journal_bytes() const;
    Result<> reload();
    std::string path_;
    std::uint32_t rank_ = 0;
    RecordSettings settings_;
    Expected expected_;
    // Path of the history of a node-local part; "": not a part.
    std::string history_;
    std::shared_ptr<RecordStore> parent_;     // null: not against another record
    std::shared_ptr<RecordStore> next_tier_;  // the history of a node-local part; null: not a part
    mutable std::mutex mutex_;                // protects journal_ and changed_
    Journal journal_;
    std::string journal_path_;
    mutable std::optional<std::optional<std::string>> changed_;  // of journal_, once it was looked at
    std::unique_ptr<RecordChain> chain_;
};

// Completes the settings of a record at `target` that is against the record `against` ("": none):
// its first ordinal is larger than all that any rank of that record has. note: adds the new record
// to that one's journal as a child, so that nobody removes differences that it needs. Errors: no
// record at `against`; another number of ranks; another size of chunks; its journal cannot be
// written; another record than that which an existing record at `target` was captured against.
// replace: an existing one makes room.
Result<> settle_against(FileSystem& system, RecordSettings& settings, const std::string& target,
                        std::uint32_t ranks, const std::string& against, bool note, bool replace = false);

}  // namespace twinrun
