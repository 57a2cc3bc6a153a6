// The results of many fields in little memory. Most fields of a comparison give nearly the same
// result: of each only the words are kept that differ from those of the first one.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/compare.hpp"

namespace twinrun {

class PackedResults {
   public:
    static constexpr std::size_t kTexts = 5;  // reason, io, device, its reason; the warnings as one

    // count: of fields, none of which has a result.
    explicit PackedResults(std::size_t count = 0) : begins_(count, kNone) {}

    // There are so many fields at least.
    void expect(std::size_t count) { begins_.resize(std::max(count, begins_.size()), kNone); }

    // The result of a field, once.
    void put(std::size_t at, const FieldResult& result);
    [[nodiscard]] bool has(std::size_t at) const { return begins_[at] != kNone; }
    // Of a field that has one.
    [[nodiscard]] FieldResult get(std::size_t at) const;
    [[nodiscard]] std::size_t size() const { return begins_.size(); }

    // For another process of the same build.
    [[nodiscard]] std::vector<std::byte> bytes() const;
    // Error: bytes that bytes() did not make.
    static Result<PackedResults> from(std::span<const std::byte> bytes);

   private:
    static constexpr std::uint64_t kNone = ~std::uint64_t{0};

    // before: the number that the text may have.
    std::uint64_t number(const std::string& text, std::uint64_t before);
    // Whether the words of a field's result are there and mean something.
    [[nodiscard]] bool is_whole(std::size_t at) const;
    template <class T>
    [[nodiscard]] T unpacked(std::size_t at) const;

    std::vector<std::uint64_t> first_;   // all words of the result that came first
    std::vector<std::uint64_t> begins_;  // in words_, of each field; kNone: it has no result
    // Of each field: a bit for each word that differs from the first result's, then these words.
    std::vector<std::uint64_t> words_;
    std::vector<std::string> texts_;
    std::unordered_map<std::string, std::uint64_t> numbers_;  // of texts
    std::array<std::uint64_t, kTexts> last_texts_{};          // of the result before: those of most
};

}  // namespace twinrun
