// Names, types and shapes of many fields in little memory, each with the tolerance that it was
// compared with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "element/dtype.hpp"
#include "element/tolerance.hpp"

namespace twinrun {

struct NamedLayout {
    std::string_view name;
    DType dtype = DType::f32;
    bool fortran_order = false;
    std::span<const std::uint64_t> shape;  // in the order of the elements
    std::uint64_t rule = 0;                // a number of the caller's
    Tolerance tolerance;
};

class PackedLayouts {
   public:
    void add(const NamedLayout& layout);
    // Valid until something is added.
    [[nodiscard]] NamedLayout get(std::size_t at) const;
    [[nodiscard]] std::size_t size() const { return entries_.size(); }

    // For another process.
    [[nodiscard]] std::vector<std::byte> bytes() const;
    // Error: bytes that bytes() did not make.
    static Result<PackedLayouts> from(std::span<const std::byte> bytes);

   private:
    struct Kind {  // what many fields have in common
        DType dtype = DType::f32;
        bool fortran_order = false;
        std::uint64_t rule = 0;
        Tolerance tolerance;
        std::vector<std::uint64_t> shape;
    };
    struct Entry {
        std::uint64_t name_end = 0;  // in names_: it begins where the one before ends
        std::uint64_t kind = 0;
    };
    // Looked for from the end: fields that follow each other are alike, as a rule.
    static constexpr std::size_t kLookedAt = 16;

    std::string names_;
    std::vector<Entry> entries_;
    std::vector<Kind> kinds_;
};

}  // namespace twinrun
