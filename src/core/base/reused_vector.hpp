// A vector that leaves its memory to the next ones of its thread. Given back to the system, the
// memory of thousands of fields would come again page by page in each call: that took a sixth of
// the time of comparing ten thousand small tensors.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

namespace twinrun {

// May be ended by another thread than the one that made it. A thread keeps the memory of two at
// most.
template <class T>
class ReusedVector {
   public:
    static constexpr std::size_t kFewest = 256;                   // less is quickly there again
    static constexpr std::size_t kMost = (8U << 20) / sizeof(T);  // more is not kept

    ReusedVector() = default;
    ReusedVector(ReusedVector&&) noexcept = default;
    ReusedVector& operator=(ReusedVector&& other) noexcept {
        all_.swap(other.all_);
        return *this;
    }
    ReusedVector(const ReusedVector&) = delete;
    ReusedVector& operator=(const ReusedVector&) = delete;
    ~ReusedVector() {
        if (all_.capacity() < kFewest || all_.capacity() > kMost) return;
        all_.clear();  // what an element's end makes and ends may use the spare ones, too
        const auto smallest =
            std::min_element(spare().begin(), spare().end(),
                             [](const auto& x, const auto& y) { return x.capacity() < y.capacity(); });
        if (smallest->capacity() < all_.capacity()) smallest->swap(all_);
    }

    [[nodiscard]] const std::vector<T>& operator*() const { return all_; }
    [[nodiscard]] std::vector<T>& operator*() { return all_; }
    [[nodiscard]] const std::vector<T>* operator->() const { return &all_; }
    [[nodiscard]] std::vector<T>* operator->() { return &all_; }

    // As reserve(), but room for a few more at a time takes no longer than for all at once.
    void make_room(std::size_t count) {
        if (count <= all_.capacity()) return;
        std::vector<T> larger;
        for (std::vector<T>& one : spare()) {
            // Not for much fewer: who keeps them would keep all of the memory.
            if (one.capacity() >= count && one.capacity() / 4 <= count) {
                larger.swap(one);
                break;
            }
        }
        if (larger.capacity() == 0) return all_.reserve(std::max(count, 2 * all_.capacity()));
        larger.assign(std::move_iterator(all_.begin()), std::move_iterator(all_.end()));
        all_.swap(larger);
    }

   private:
    // Two, as a comparison has two sides. Empty.
    static std::array<std::vector<T>, 2>& spare() {
        thread_local std::array<std::vector<T>, 2> all;
        return all;
    }

    std::vector<T> all_;
};

}  // namespace twinrun
