#include "aggregate/mpi/datatype.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "aggregate/mpi/team.hpp"
#include "base/checked.hpp"

namespace twinrun::aggregation {

namespace {

// Types within types. Deeper ones are refused, because each level takes space on the stack.
constexpr int kDeepest = 200;

Error unknown(const std::string& what) { return Error{ErrorCode::unsupported, "an MPI datatype " + what}; }

// Sizes and extents that may exceed an int.
Result<std::int64_t> extent_of(MPI_Datatype type) {
    MPI_Aint lower = 0;
    MPI_Aint extent = 0;
    TWR_MPI("MPI_Type_get_extent", MPI_Type_get_extent(type, &lower, &extent));
    return std::int64_t{extent};
}

Result<std::uint64_t> size_of(MPI_Datatype type) {
    MPI_Count size = 0;
    TWR_MPI("MPI_Type_size_x", MPI_Type_size_x(type, &size));
    if (size < 0) return unknown("has a size that MPI cannot say");
    return static_cast<std::uint64_t>(size);
}

// Types that MPI_Type_get_contents has handed out, which the caller frees unless they are
// predefined.
class Types {
   public:
    Types() = default;
    ~Types() {
        for (MPI_Datatype& type : all) {
            int combiner = MPI_COMBINER_NAMED;
#if MPI_VERSION >= 4
            MPI_Count n[4];
            MPI_Type_get_envelope_c(type, &n[0], &n[1], &n[2], &n[3], &combiner);
#else
            int n[3];
            MPI_Type_get_envelope(type, &n[0], &n[1], &n[2], &combiner);
#endif
            if (combiner == MPI_COMBINER_NAMED || combiner == MPI_COMBINER_F90_REAL ||
                combiner == MPI_COMBINER_F90_COMPLEX || combiner == MPI_COMBINER_F90_INTEGER)
                continue;
            MPI_Type_free(&type);
        }
    }
    Types(const Types&) = delete;
    Types& operator=(const Types&) = delete;
    std::vector<MPI_Datatype> all;
};

// The arguments of a type's constructor. Those of the large constructors of MPI 4 that are counts
// stand in `counts`, and there alone.
struct Contents {
    int combiner = MPI_COMBINER_NAMED;
    std::vector<int> integers;
    std::vector<MPI_Aint> addresses;
    std::vector<MPI_Count> counts;
    Types types;

    Result<> fill(MPI_Datatype type) {
#if MPI_VERSION >= 4
        MPI_Count integer_count = 0;
        MPI_Count address_count = 0;
        MPI_Count large_count = 0;
        MPI_Count type_count = 0;
        TWR_MPI("MPI_Type_get_envelope_c", MPI_Type_get_envelope_c(type, &integer_count, &address_count,
                                                                   &large_count, &type_count, &combiner));
        if (is_leaf()) return success();
        // The arrays are never empty, because MPI may refuse a null pointer.
        integers.resize(static_cast<std::size_t>(integer_count) + 1);
        addresses.resize(static_cast<std::size_t>(address_count) + 1);
        counts.resize(static_cast<std::size_t>(large_count) + 1);
        types.all.resize(static_cast<std::size_t>(type_count), MPI_DATATYPE_NULL);
        TWR_MPI("MPI_Type_get_contents_c",
                MPI_Type_get_contents_c(type, integer_count, address_count, large_count, type_count,
                                        integers.data(), addresses.data(), counts.data(), types.all.data()));
        integers.pop_back();
        addresses.pop_back();
        counts.pop_back();
#else
        int integer_count = 0;
        int address_count = 0;
        int type_count = 0;
        TWR_MPI("MPI_Type_get_envelope",
                MPI_Type_get_envelope(type, &integer_count, &address_count, &type_count, &combiner));
        if (is_leaf()) return success();
        integers.resize(static_cast<std::size_t>(integer_count) + 1);
        addresses.resize(static_cast<std::size_t>(address_count) + 1);
        types.all.resize(static_cast<std::size_t>(type_count), MPI_DATATYPE_NULL);
        TWR_MPI("MPI_Type_get_contents",
                MPI_Type_get_contents(type, integer_count, address_count, type_count, integers.data(),
                                      addresses.data(), types.all.data()));
        integers.pop_back();
        addresses.pop_back();
#endif
        return success();
    }
    [[nodiscard]] bool is_leaf() const {
        return combiner == MPI_COMBINER_NAMED || combiner == MPI_COMBINER_F90_REAL ||
               combiner == MPI_COMBINER_F90_COMPLEX || combiner == MPI_COMBINER_F90_INTEGER;
    }
    [[nodiscard]] bool large() const { return !counts.empty(); }
    // Number k of the constructor's counts, lengths and displacements.
    [[nodiscard]] std::int64_t count(std::size_t k) const {
        return large() ? std::int64_t{counts.at(k)} : std::int64_t{integers.at(k)};
    }
    // Displacement k in bytes; passed: the number of counts before the displacements.
    [[nodiscard]] std::int64_t displacement(std::size_t passed, std::size_t k) const {
        return large() ? std::int64_t{counts.at(passed + k)} : std::int64_t{addresses.at(k)};
    }
};

// A predefined type. The pairs of MPI_MINLOC may have a gap between their two members, and the
// second member is an int.
Result<Stream> leaf(MPI_Datatype type) {
    Stream stream;
    TWR_TRY(const std::uint64_t size, size_of(type));
    if (size == 0) return stream;
    MPI_Aint lower = 0;
    MPI_Aint extent = 0;
    TWR_MPI("MPI_Type_get_true_extent", MPI_Type_get_true_extent(type, &lower, &extent));
    if (static_cast<std::uint64_t>(extent) == size || size <= sizeof(int)) {
        TWR_CHECK(stream.append({lower, size, 1, 0}));
        return stream;
    }
    const std::uint64_t first = size - sizeof(int);
    TWR_CHECK(stream.append({lower, first, 1, 0}));
    TWR_CHECK(stream.append({lower + extent - static_cast<std::int64_t>(sizeof(int)), sizeof(int), 1, 0}));
    return stream;
}

Result<Stream> flatten(MPI_Datatype type, int depth);

// A type that others repeat.
struct Inner {
    Stream stream;
    std::int64_t extent = 0;
};

Result<Inner> inner(MPI_Datatype type, int depth) {
    Inner found;
    TWR_TRY(found.stream, flatten(type, depth + 1));
    TWR_TRY(found.extent, extent_of(type));
    return found;
}

Result<std::uint64_t> natural(std::int64_t value) {
    if (value < 0) return unknown("has a negative count");
    return static_cast<std::uint64_t>(value);
}

Result<std::int64_t> times(std::int64_t a, std::int64_t b) {
    std::int64_t product = 0;
    if (__builtin_mul_overflow(a, b, &product)) return unknown("reaches beyond 2^63");
    return product;
}

// `length` items at each of the displacements, in bytes.
struct PlacedItems {
    std::int64_t length = 0;
    std::int64_t displacement = 0;
};
Result<> append_pieces(Stream& to, const Inner& of, PlacedItems piece) {
    TWR_TRY(const std::uint64_t length, natural(piece.length));
    TWR_TRY(const Stream items, repeated(of.stream, length, of.extent));
    return to.append(items, piece.displacement);
}

Result<Stream> vector_type(const Contents& c, bool in_bytes, int depth) {
    TWR_TRY(const Inner of, inner(c.types.all.at(0), depth));
    TWR_TRY(const std::uint64_t count, natural(c.count(0)));
    TWR_TRY(const std::uint64_t length, natural(c.count(1)));
    std::int64_t stride = 0;
    if (in_bytes) {
        stride = c.large() ? std::int64_t{c.counts.at(2)} : std::int64_t{c.addresses.at(0)};
    } else {
        TWR_TRY(stride, times(c.count(2), of.extent));
    }
    TWR_TRY(const Stream block, repeated(of.stream, length, of.extent));
    return repeated(block, count, stride);
}

Result<Stream> indexed_type(const Contents& c, bool in_bytes, bool one_length, int depth) {
    TWR_TRY(const Inner of, inner(c.types.all.at(0), depth));
    TWR_TRY(const std::uint64_t count, natural(c.count(0)));
    const auto items = static_cast<std::size_t>(count);
    const std::size_t passed = one_length ? 2 : 1 + items;
    Stream all;
    for (std::size_t i = 0; i < items; ++i) {
        PlacedItems piece{c.count(one_length ? 1 : 1 + i), 0};
        if (in_bytes) {
            piece.displacement = c.displacement(passed, i);
        } else {
            TWR_TRY(piece.displacement, times(c.count(passed + i), of.extent));
        }
        TWR_CHECK(append_pieces(all, of, piece));
    }
    return all;
}

Result<Stream> struct_type(const Contents& c, int depth) {
    TWR_TRY(const std::uint64_t count, natural(c.count(0)));
    const auto items = static_cast<std::size_t>(count);
    Stream all;
    for (std::size_t i = 0; i < items; ++i) {
        TWR_TRY(const Inner of, inner(c.types.all.at(i), depth));
        TWR_CHECK(append_pieces(all, of, {c.count(1 + i), c.displacement(1 + items, i)}));
    }
    return all;
}

// The part of one dimension that a process has: intervals of its indices, `length` items every
// `stride`, the last one cut at the end.
struct Share {
    std::uint64_t begin = 0;
    std::uint64_t length = 0;
    std::uint64_t stride = 0;
    std::uint64_t end = 0;
};

// An array of `sizes` items of a type, and this process's share of each dimension.
Result<Stream> array_type(const Inner& of, const std::vector<std::uint64_t>& sizes,
                          const std::vector<Share>& shares, bool fortran) {
    Stream stream = of.stream;
    std::int64_t stride = of.extent;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        const std::size_t d = fortran ? i : sizes.size() - 1 - i;
        const Share& share = shares[d];
        Stream all;
        const std::uint64_t whole =
            share.end > share.begin && share.end - share.begin >= share.length && share.stride != 0
                ? (share.end - share.begin - share.length) / share.stride + 1
                : 0;
        TWR_TRY(const std::int64_t step, times(static_cast<std::int64_t>(share.stride), stride));
        if (whole != 0) {
            TWR_TRY(const Stream block, repeated(stream, share.length, stride));
            TWR_TRY(const Stream blocks, repeated(block, whole, step));
            TWR_TRY(const std::int64_t begin, times(static_cast<std::int64_t>(share.begin), stride));
            TWR_CHECK(all.append(blocks, begin));
        }
        const std::uint64_t last = share.begin + whole * share.stride;
        if (last < share.end) {
            TWR_TRY(const Stream block, repeated(stream, std::min(share.length, share.end - last), stride));
            TWR_TRY(const std::int64_t begin, times(static_cast<std::int64_t>(last), stride));
            TWR_CHECK(all.append(block, begin));
        }
        stream = std::move(all);
        TWR_TRY(stride, times(stride, static_cast<std::int64_t>(sizes[d])));
    }
    return stream;
}

Result<Stream> subarray_type(const Contents& c, int depth) {
    TWR_TRY(const Inner of, inner(c.types.all.at(0), depth));
    const auto dimensions = static_cast<std::size_t>(c.integers.at(0));
    const auto value = [&](std::size_t group, std::size_t d) {
        const std::size_t at = group * dimensions + d;
        return c.large() ? std::int64_t{c.counts.at(at)} : std::int64_t{c.integers.at(1 + at)};
    };
    const int order = c.large() ? c.integers.at(1) : c.integers.at(1 + 3 * dimensions);
    std::vector<std::uint64_t> sizes(dimensions);
    std::vector<Share> shares(dimensions);
    for (std::size_t d = 0; d < dimensions; ++d) {
        TWR_TRY(sizes[d], natural(value(0, d)));
        TWR_TRY(const std::uint64_t length, natural(value(1, d)));
        TWR_TRY(const std::uint64_t begin, natural(value(2, d)));
        shares[d] = {begin, length, length, begin + length};
    }
    return array_type(of, sizes, shares, order == MPI_ORDER_FORTRAN);
}

Result<Stream> darray_type(const Contents& c, int depth) {
    TWR_TRY(const Inner of, inner(c.types.all.at(0), depth));
    const auto dimensions = static_cast<std::size_t>(c.integers.at(2));
    // size, rank, dimensions; global sizes, which are counts in large types; distributions,
    // arguments, processes; order
    const std::size_t sizes_at = 3;
    const std::size_t behind = sizes_at + (c.large() ? 0 : dimensions);
    const auto integer = [&](std::size_t group, std::size_t d) {
        return c.integers.at(behind + group * dimensions + d);
    };
    const int order = c.integers.at(behind + 3 * dimensions);
    std::vector<std::uint64_t> sizes(dimensions);
    std::vector<Share> shares(dimensions);
    int processes = c.integers.at(0);
    int rank = c.integers.at(1);
    for (std::size_t d = 0; d < dimensions; ++d) {
        TWR_TRY(sizes[d], natural(c.large() ? std::int64_t{c.counts.at(d)}
                                            : std::int64_t{c.integers.at(sizes_at + d)}));
        const int grid = integer(2, d);
        if (grid <= 0) return unknown("has a grid without processes");
        // Ranks are in row-major order, whatever the order of the array.
        processes /= grid;
        if (processes <= 0) return unknown("has a grid of more processes than it says");
        const auto place = static_cast<std::uint64_t>(rank / processes);
        rank %= processes;
        const auto across = static_cast<std::uint64_t>(grid);
        const int argument = integer(1, d);
        switch (integer(0, d)) {
            case MPI_DISTRIBUTE_NONE: shares[d] = {0, sizes[d], sizes[d], sizes[d]}; break;
            case MPI_DISTRIBUTE_BLOCK: {
                const std::uint64_t block = argument == MPI_DISTRIBUTE_DFLT_DARG
                                                ? divide_up(sizes[d], across)
                                                : static_cast<std::uint64_t>(std::max(argument, 0));
                const std::uint64_t begin = std::min(place * block, sizes[d]);
                const std::uint64_t end = std::min(begin + block, sizes[d]);
                shares[d] = {begin, end - begin, end - begin, end};
                break;
            }
            case MPI_DISTRIBUTE_CYCLIC: {
                const std::uint64_t block = argument == MPI_DISTRIBUTE_DFLT_DARG
                                                ? 1
                                                : static_cast<std::uint64_t>(std::max(argument, 0));
                shares[d] = {std::min(place * block, sizes[d]), block, block * across, sizes[d]};
                break;
            }
            default: return unknown("has a distribution that this version does not know");
        }
    }
    return array_type(of, sizes, shares, order == MPI_ORDER_FORTRAN);
}

Result<Stream> flatten(MPI_Datatype type, int depth) {
    if (depth > kDeepest) return unknown("has more than " + std::to_string(kDeepest) + " levels");
    Contents c;
    TWR_CHECK(c.fill(type));
    if (c.is_leaf()) return leaf(type);
    switch (c.combiner) {
        case MPI_COMBINER_DUP: return flatten(c.types.all.at(0), depth + 1);
        case MPI_COMBINER_RESIZED: return flatten(c.types.all.at(0), depth + 1);
        case MPI_COMBINER_CONTIGUOUS: {
            TWR_TRY(const Inner of, inner(c.types.all.at(0), depth));
            TWR_TRY(const std::uint64_t count, natural(c.count(0)));
            return repeated(of.stream, count, of.extent);
        }
        case MPI_COMBINER_VECTOR: return vector_type(c, false, depth);
        case MPI_COMBINER_HVECTOR: return vector_type(c, true, depth);
        case MPI_COMBINER_INDEXED: return indexed_type(c, false, false, depth);
        case MPI_COMBINER_HINDEXED: return indexed_type(c, true, false, depth);
        case MPI_COMBINER_INDEXED_BLOCK: return indexed_type(c, false, true, depth);
        case MPI_COMBINER_HINDEXED_BLOCK: return indexed_type(c, true, true, depth);
        case MPI_COMBINER_STRUCT: return struct_type(c, depth);
        case MPI_COMBINER_SUBARRAY: return subarray_type(c, depth);
        case MPI_COMBINER_DARRAY: return darray_type(c, depth);
        default:
            return unknown("was made by a constructor that this version does not know (combiner " +
                           std::to_string(c.combiner) + ")");
    }
}

}  // namespace

Result<TypeStream> stream_of(MPI_Datatype type) {
    TypeStream found;
    if (type == MPI_DATATYPE_NULL) {
        return Error{ErrorCode::invalid_argument, "the datatype is MPI_DATATYPE_NULL"};
    }
    TWR_TRY(found.stream, flatten(type, 0));
    TWR_TRY(found.extent, extent_of(type));
    // Checks that MPI counts the same bytes: a datatype that was misunderstood must not move data.
    TWR_TRY(const std::uint64_t size, size_of(type));
    if (size != found.stream.bytes()) {
        return unknown("has " + std::to_string(size) + " bytes, and its constructors give " +
                       std::to_string(found.stream.bytes()));
    }
    return found;
}

std::optional<std::uint64_t> dense_item(MPI_Datatype type) {
    if (type == MPI_DATATYPE_NULL) return std::nullopt;
    int integers = 0;
    int addresses = 0;
    int types = 0;
    int combiner = MPI_COMBINER_DUP;
    MPI_Count size = 0;
    MPI_Aint lower = 0;
    MPI_Aint extent = 0;
    MPI_Aint true_lower = 0;
    MPI_Aint true_extent = 0;
    if (MPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner) != MPI_SUCCESS ||
        combiner != MPI_COMBINER_NAMED || MPI_Type_size_x(type, &size) != MPI_SUCCESS || size <= 0 ||
        MPI_Type_get_extent(type, &lower, &extent) != MPI_SUCCESS || extent != size ||
        MPI_Type_get_true_extent(type, &true_lower, &true_extent) != MPI_SUCCESS || true_lower != 0 ||
        true_extent != size)
        return std::nullopt;
    return static_cast<std::uint64_t>(size);
}

Result<Stream> stream_of_items(const TypeStream& type, std::uint64_t count) {
    return repeated(type.stream, count, type.extent);
}

}  // namespace twinrun::aggregation
