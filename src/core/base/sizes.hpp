// The shape of an array: up to four dimensions lie in the object itself. Lists of thousands of
// small arrays ask for no memory for them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace twinrun {

class Sizes {
   public:
    Sizes() = default;
    Sizes(std::initializer_list<std::uint64_t> all) { assign(all.begin(), all.end()); }
    Sizes(const std::vector<std::uint64_t>& all) {
        assign(all.begin(), all.end());
    }                                                                         // NOLINT: a shape is one
    operator std::vector<std::uint64_t>() const { return {begin(), end()}; }  // NOLINT: as above

    [[nodiscard]] std::size_t size() const { return count_; }
    [[nodiscard]] bool empty() const { return count_ == 0; }
    [[nodiscard]] const std::uint64_t* data() const { return count_ > kHere ? more_.data() : here_; }
    [[nodiscard]] std::uint64_t* data() { return count_ > kHere ? more_.data() : here_; }
    [[nodiscard]] const std::uint64_t* begin() const { return data(); }
    [[nodiscard]] const std::uint64_t* end() const { return data() + count_; }
    [[nodiscard]] std::uint64_t* begin() { return data(); }
    [[nodiscard]] std::uint64_t* end() { return data() + count_; }
    [[nodiscard]] std::uint64_t operator[](std::size_t i) const { return data()[i]; }
    [[nodiscard]] std::uint64_t& operator[](std::size_t i) { return data()[i]; }

    // All of them are 0 then.
    void resize(std::size_t count) {
        if (count > kHere) more_.assign(count, 0);
        std::fill(here_, here_ + kHere, 0);
        count_ = count;
    }
    template <class Iterator>
    void assign(Iterator first, Iterator last) {
        resize(static_cast<std::size_t>(last - first));
        std::transform(first, last, begin(), [](auto size) { return static_cast<std::uint64_t>(size); });
    }
    bool operator==(const Sizes& other) const {
        return count_ == other.count_ && std::equal(begin(), end(), other.begin());
    }

   private:
    static constexpr std::size_t kHere = 4;
    std::size_t count_ = 0;
    std::uint64_t here_[kHere] = {};
    std::vector<std::uint64_t> more_;  // all, where there are more
};

}  // namespace twinrun
