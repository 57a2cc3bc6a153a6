// One rank's record, for readers: its journal, that of the record it is against, and the chain of their differences. While
// another process folds differences, readers go on: what is not where the journal said is looked for once more.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "history/history.hpp"
#include "restore/chain.hpp"

namespace twinrun {

inline constexpr std::uint64_t kRecordPart = std::uint64_t{1} << 20;    // RecordStore::stream
inline constexpr std::uint64_t kRecordMemory = std::uint64_t{1} << 30;  // where nobody says how much

// Thread-safe.
class RecordStore {
   public:
    // A history, or a rank's part of one on a node-local tier. Errors: not_found; damaged; invalid_argument: it is no record.
    static Result<std::shared_ptr<RecordStore>> open(const std::string& path, std::uint32_t rank,
                                                     int threads = 1);

    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] const RecordSettings& settings() const { return settings_; }
    [[nodiscard]] Journal journal() const;  // as it was read last
    // Ordinals that are there, of this record and of what it is against, ascending.
    [[nodiscard]] std::vector<std::uint32_t> ordinals() const;
    [[nodiscard]] Result<std::string> locate(std::uint32_t ordinal) const;
    [[nodiscard]] RecordChain& chain() { return *chain_; }
    // The record that this one is against, or null.
    [[nodiscard]] const std::shared_ptr<RecordStore>& parent() const { return parent_; }

    // Errors: not_found: this rank has no such step, or only its metadata; damaged.
    Result<StepMap> map(std::int64_t step);
    Result<> read(const StepMap& map, std::size_t segment, std::uint64_t offset, std::span<std::byte> to);
    Result<> read_segment(const StepMap& map, std::size_t segment, std::span<std::byte> to);
    // Bytes [offset, offset + bytes) of a segment to `take`, in order: each part but the last ends at a multiple of kRecordPart.
    // Memory: of one part, with what it takes to read it; kRecordPart is always had. The content's checksum is compared last,
    // where that is the whole segment.
    using Take = std::function<Result<>(std::uint64_t offset, std::span<const std::byte> part)>;
    Result<> stream(const StepMap& map, std::size_t segment, std::uint64_t offset, std::uint64_t bytes,
                    std::uint64_t memory, const Take& take);

   private:
    RecordStore() = default;
    static Result<std::shared_ptr<RecordStore>> open(const std::string& path, std::uint32_t rank, int threads,
                                                     int level);
    Result<> load();
    template <class Work>
    auto again(Work work) -> decltype(work());
    [[nodiscard]] std::uint64_t journal_bytes() const;
    Result<> reload();
    std::string path_;
    std::uint32_t rank_ = 0;
    RecordSettings settings_;
    std::string history_;  // of a node-local part
    std::shared_ptr<RecordStore> parent_;
    std::shared_ptr<RecordStore> next_tier_;
    mutable std::mutex mutex_;
    Journal journal_;
    std::unique_ptr<RecordChain> chain_;
};

// Settings of a record at `target` that is to be against another one: its ordinals go on behind all that any rank of that one
// has. note: that one is told, so that nobody takes from it what this one needs. "": against none. Errors: no record there; other
// ranks; other chunks; it cannot be told.
Result<> settle_against(FileSystem& system, RecordSettings& settings, const std::string& target,
                        std::uint32_t ranks, const std::string& against, bool note);

}  // namespace twinrun
