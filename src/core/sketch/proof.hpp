// Whether the metadata of two fields can prove that they agree.
#pragma once

#include <cstdint>
#include <string>

#include "difference/difference.hpp"
#include "metadata/metadata.hpp"

namespace twinrun {

enum class Method : std::uint8_t {
    automatic,  // staged where both sides have metadata that can prove agreement, else direct
    staged,
    direct,     // every element
    published,  // the tree of published digests, then elements
};

// Why the metadata of two fields cannot be compared by this method under this tolerance; empty: they can.
std::string why_not_staged(const FieldMetadata& a, const FieldMetadata& b, Method method,
                           const DifferenceRule& rule);

}  // namespace twinrun
