// The steps in one rank's journal. A run may commit millions: most entries are alike but for a few
// numbers, and only these are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "record/delta.hpp"
#include "record/difference_place.hpp"

namespace twinrun {

// One rank's files of a step, as its journal describes them.
struct RankFiles {
    std::uint32_t rank = 0;
    std::string data;  // name in the step's folder; empty: metadata only
    std::uint64_t data_bytes = 0;
    // Name in the step's folder; empty: packed files of other programs have none.
    std::string metadata;
    std::uint64_t metadata_bytes = 0;
    // XXH3-64 of the metadata file's header, which has the checksums of the rest
    std::uint64_t header_checksum = 0;
    double blocked_seconds = 0;  // how long capture() held up the application
    // In a record: the ordinal of the difference in `data`, whose size is data_bytes. kNoBase:
    // `data` has the fields' bytes.
    std::uint32_t difference = kNoBase;
    std::uint64_t full_bytes = 0;  // size of the data that the difference restores
    // true: `data` belongs to several ranks; this rank's bytes are data_bytes bytes from `offset`
    // on.
    bool shared = false;
    std::uint64_t offset = 0;
    std::uint64_t file_bytes = 0;  // size of the whole shared file
    // Where the step is not proven equal to its run's reference; empty: nowhere.
    std::string divergence;
    // DifferencePlace::checksum of the difference in `data`.
    std::optional<std::uint64_t> difference_checksum = std::nullopt;
    bool operator==(const RankFiles&) const = default;
};

// A journal's entry for a step: one rank's part of it.
struct RankStep {
    std::string folder;  // name in the history's folder
    RankFiles files;
    bool operator==(const RankStep&) const = default;
};

// Entries by step, ascending, as in a std::map. An entry is made when an iterator is read, and the
// iterator holds it: references to it end with the iterator. Every change ends all iterators.
// Functions that change it throw std::bad_alloc; then nothing changed.
class RankSteps {
    // An entry whose folder has the name of its step, and which is in no record, in no shared file,
    // and agrees with its reference: 48 bytes.
    struct Plain {
        std::int64_t step;
        std::uint64_t data_bytes;
        std::uint64_t metadata_bytes;
        std::uint64_t header_checksum;
        double blocked_seconds;
        std::uint32_t attempt;
        std::uint32_t names;  // which of names_
    };
    // What the files of many steps are called.
    struct Names {
        std::uint32_t rank;
        std::string data, metadata;
    };
    using Others = std::map<std::int64_t, RankStep>;

   public:
    using value_type = std::pair<std::int64_t, RankStep>;

    class const_iterator {
       public:
        using iterator_category = std::input_iterator_tag;
        using value_type = RankSteps::value_type;
        using difference_type = std::ptrdiff_t;
        using pointer = const value_type*;
        using reference = const value_type&;

        const_iterator() = default;
        reference operator*() const { return *operator->(); }
        pointer operator->() const {
            if (!made_) made_ = in_->entry(plain_, other_);
            return &*made_;
        }
        const_iterator& operator++();
        const_iterator operator++(int) {
            const_iterator before = *this;
            ++*this;
            return before;
        }
        bool operator==(const const_iterator& o) const { return plain_ == o.plain_ && other_ == o.other_; }

       private:
        friend class RankSteps;
        const_iterator(const RankSteps& in, std::size_t plain, Others::const_iterator other)
            : in_(&in), plain_(plain), other_(other) {}
        const RankSteps* in_ = nullptr;
        // It is at the lower one of these two.
        std::size_t plain_ = 0;
        Others::const_iterator other_;
        mutable std::optional<value_type> made_;
    };

    [[nodiscard]] const_iterator begin() const { return {*this, 0, others_.begin()}; }
    [[nodiscard]] const_iterator end() const { return {*this, plain_.size(), others_.end()}; }
    [[nodiscard]] const_iterator find(std::int64_t step) const;
    [[nodiscard]] bool contains(std::int64_t step) const { return find(step) != end(); }
    // Throws std::out_of_range.
    [[nodiscard]] RankStep at(std::int64_t step) const;
    // The one with the highest number; there is one.
    [[nodiscard]] value_type last() const;
    [[nodiscard]] bool empty() const { return size() == 0; }
    [[nodiscard]] std::size_t size() const { return plain_.size() + others_.size(); }
    // Whether a step is in this folder.
    [[nodiscard]] bool names_folder(const std::string& folder) const;
    // Whether this step is there, and in this folder.
    [[nodiscard]] bool has(std::int64_t step, const std::string& folder) const;
    bool operator==(const RankSteps& o) const;

    // Adds a step, or replaces it.
    void put(std::int64_t step, const RankStep& entry);
    void erase(std::int64_t step);

   private:
    [[nodiscard]] std::size_t lower_bound(std::int64_t step) const;
    [[nodiscard]] bool is_plain(std::size_t at, std::int64_t step) const {
        return at < plain_.size() && plain_[at].step == step;
    }
    [[nodiscard]] value_type entry(std::size_t plain, Others::const_iterator other) const;
    [[nodiscard]] RankStep made_of(const Plain& plain) const;
    [[nodiscard]] RankFiles files_of(const Plain& plain) const;
    [[nodiscard]] std::optional<Plain> plain_of(std::int64_t step, const RankStep& entry);
    std::optional<std::uint32_t> names_of(const RankFiles& files);

    std::vector<Plain> plain_;  // ascending
    std::vector<Names> names_;
    Others others_;  // none of the steps of plain_
};

}  // namespace twinrun
