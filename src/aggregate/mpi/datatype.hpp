// Datatypes of MPI as streams of bytes: what MPI_Type_get_envelope and MPI_Type_get_contents say of
// them.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <optional>

#include "aggregate/plan/stream.hpp"
#include "base/result.hpp"

namespace twinrun::aggregation {

struct TypeStream {
    Stream stream;            // in the order of the type map
    std::int64_t extent = 0;  // from one item to the next
};

// Errors: unsupported: a constructor that this version does not know, or too many pieces; an error
// of MPI.
Result<TypeStream> stream_of(MPI_Datatype type);
// The bytes of an item of one of MPI's own datatypes that has no gaps: items follow each other from
// the buffer's begin on. nullopt: it is another datatype.
[[nodiscard]] std::optional<std::uint64_t> dense_item(MPI_Datatype type);
// `count` items.
Result<Stream> stream_of_items(const TypeStream& type, std::uint64_t count);

}  // namespace twinrun::aggregation
