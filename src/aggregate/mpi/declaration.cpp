// Declarations of the C interface: what ranks will write or read.
#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aggregate/mpi/aggregate.hpp"
#include "aggregate/mpi/datatype.hpp"
#include "aggregate/mpi/refusal.hpp"
#include "aggregate/plan/layout.hpp"
#include "aggregate/plan/stored.hpp"
#include "aggregate/plan/stream.hpp"
#include "base/caught.hpp"
#include "base/checked.hpp"
#include "base/checksum.hpp"

namespace twinrun::aggregation {

static_assert(kMostDimensions == TWR_AGGREGATE_DIMENSIONS);

namespace {

Result<std::vector<RankSet>> sets_of(const twr_aggregate_variable* variables, int count) {
    if (count < 0) return refuse("count is negative");
    if (variables == nullptr && count != 0) return refuse("variables is NULL");
    std::vector<DeclaredVariable> declared;
    for (int i = 0; i < count; ++i) {
        const twr_aggregate_variable& v = variables[i];
        declared.push_back({v.item_bytes, v.items, v.file_offset, v.file_stride, v.memory_stride});
    }
    return rank_sets(declared);
}

// The variables of records in one of the three layouts. before: items of the ranks before this one;
// total: items of all ranks.
// nullopt: sizes overflow.
std::optional<std::vector<twr_aggregate_variable>> records(const std::vector<std::uint64_t>& item_bytes,
                                                           std::uint64_t items, std::uint64_t before,
                                                           std::uint64_t total, int layout,
                                                           std::uint64_t offset) {
    std::uint64_t record = 0;
    for (const std::uint64_t bytes : item_bytes) {
        const auto sum = checked_add(record, bytes);
        if (!sum) return std::nullopt;
        record = *sum;
    }
    const auto all = checked_multiply(record, total);
    if (!all || !checked_add(*all, offset)) return std::nullopt;
    std::vector<twr_aggregate_variable> variables;
    std::uint64_t passed = 0;  // bytes of one item in all variables before this one
    for (const std::uint64_t bytes : item_bytes) {
        twr_aggregate_variable v = {bytes, items, 0, 0, 0};
        switch (layout) {
            case TWR_RECORDS:
                v.file_offset = offset + record * before + passed;
                v.file_stride = record;
                break;
            case TWR_BLOCKS: v.file_offset = offset + record * before + passed * items; break;
            default: v.file_offset = offset + passed * total + bytes * before; break;
        }
        variables.push_back(v);
        passed += bytes;
    }
    return variables;
}

// All dimensions of a block have these lengths where the caller gave none.
constexpr std::array<std::uint64_t, kMostDimensions> kZeros{};

Result<std::vector<RankSet>> sets_of_blocks(const twr_aggregate_block* blocks, int count) {
    if (count < 0) return refuse("count is negative");
    if (blocks == nullptr && count != 0) return refuse("blocks is NULL");
    std::vector<ArrayPart> parts;
    for (int i = 0; i < count; ++i) {
        const twr_aggregate_block& b = blocks[i];
        const std::string name = "block " + std::to_string(i) + ": ";
        if (b.dimensions < 0 || b.dimensions > TWR_AGGREGATE_DIMENSIONS) {
            return refuse(name + "dimensions is " + std::to_string(b.dimensions) + ", and may be 0 to " +
                          std::to_string(TWR_AGGREGATE_DIMENSIONS));
        }
        if (b.order != TWR_ORDER_C && b.order != TWR_ORDER_FORTRAN) {
            return refuse(name + "order is " + std::to_string(b.order) +
                          ", and may be TWR_ORDER_C or TWR_ORDER_FORTRAN");
        }
        const auto dimensions = static_cast<std::size_t>(b.dimensions);
        if (dimensions != 0 && (b.global_shape == nullptr || b.start == nullptr || b.shape == nullptr))
            return refuse(name + "global_shape, start or shape is NULL");
        if (b.local_start != nullptr && b.local_shape == nullptr)
            return refuse(name + "local_start is given, and local_shape is NULL");
        const auto span = [&](const std::uint64_t* given, const std::uint64_t* otherwise) {
            return std::span(given != nullptr ? given : otherwise, dimensions);
        };
        const std::uint64_t* const zeros = kZeros.data();
        const Block block{b.item_bytes,
                          b.order == TWR_ORDER_C ? ArrayOrder::c : ArrayOrder::fortran,
                          b.file_offset,
                          span(b.global_shape, zeros),
                          span(b.start, zeros),
                          span(b.shape, zeros),
                          span(b.local_shape, b.shape != nullptr ? b.shape : zeros),
                          span(b.local_start, zeros)};
        TWR_CHECK(block_parts(block, static_cast<std::uint32_t>(i), parts));
    }
    return rank_sets(parts);
}

Result<std::vector<RankSet>> sets_of_types(const twr_aggregate_typed* types, int count) {
    if (count < 0) return refuse("count is negative");
    if (types == nullptr && count != 0) return refuse("types is NULL");
    std::vector<ArrayPart> parts;
    for (int i = 0; i < count; ++i) {
        const twr_aggregate_typed& t = types[i];
        const auto add = [&]() -> Result<> {
            if (t.file_offset >= std::uint64_t{1} << 62) return refuse("file_offset is 2^62 or more");
            TWR_TRY(const TypeStream memory_type, stream_of(t.memory_type));
            TWR_TRY(const TypeStream file_type, stream_of(t.file_type));
            TWR_TRY(const Stream memory, stream_of_items(memory_type, t.memory_count));
            if (memory.bytes() == 0) return success();
            if (file_type.stream.bytes() == 0) return refuse("file_type has no bytes, and memory_type has");
            TWR_TRY(const Stream file,
                    slice_of_tiles(file_type.stream, file_type.extent,
                                   static_cast<std::int64_t>(t.file_offset), 0, memory.bytes()));
            return match(file, memory, static_cast<std::uint32_t>(i), parts);
        };
        if (auto added = add(); !added)
            return std::move(added).error().at("datatypes of variable " + std::to_string(i));
    }
    return rank_sets(parts);
}

}  // namespace

namespace {

// [collective] This rank's sets, or its error. Parts of a whole file go to this rank's file one
// behind the other, those of lower ranks first.
Result<> put(twr_aggregate* a, Result<std::vector<RankSet>> sets, std::uint64_t variables) {
    settle(*a);
    ++a->declarations;
    if (!a->whole) return a->plan->declare(std::move(sets), variables, a->settings.overlap);
    a->plan->forget();
    TWR_CHECK(a->whole->collect(std::move(sets), variables, a->settings.overlap));
    auto packed = caught([&]() -> Result<std::vector<RankSet>> {
        std::vector<bool> before(static_cast<std::size_t>(a->everyone.ranks), false);
        for (int rank = 0; rank < a->group.rank; ++rank)
            before[static_cast<std::size_t>(a->group.team_rank[static_cast<std::size_t>(rank)])] = true;
        std::uint64_t at = 0;
        for (const OwnedSet& owned : a->whole->table().sets()) {
            if (before[owned.rank]) at += owned.set.bytes();
        }
        return packed_sets(a->whole->sets(), at);
    });
    return a->plan->declare(std::move(packed), variables);
}

}  // namespace

namespace {

template <class Body>
Result<std::vector<RankSet>> unless_refused(Body&& body) {
    return caught([&]() -> Result<std::vector<RankSet>> {
        TWR_CHECK(not_refused());
        return body();
    });
}

}  // namespace

Result<> declare_blocks(twr_aggregate* a, const twr_aggregate_block* blocks, int count) {
    if (a == nullptr) return refuse("aggregate is NULL");
    return put(a, unless_refused([&] { return sets_of_blocks(blocks, count); }),
               static_cast<std::uint64_t>(std::max(count, 0)));
}

Result<> declare_types(twr_aggregate* a, const twr_aggregate_typed* types, int count) {
    if (a == nullptr) return refuse("aggregate is NULL");
    return put(a, unless_refused([&] { return sets_of_types(types, count); }),
               static_cast<std::uint64_t>(std::max(count, 0)));
}

Result<> declare(twr_aggregate* a, const twr_aggregate_variable* variables, int count) {
    if (a == nullptr) return refuse("aggregate is NULL");
    return put(a, unless_refused([&] { return sets_of(variables, count); }),
               static_cast<std::uint64_t>(std::max(count, 0)));
}

Result<> declare_records(twr_aggregate* a, const std::uint64_t* item_bytes, int count, std::uint64_t items,
                         int layout, std::uint64_t offset) {
    if (a == nullptr) return refuse("aggregate is NULL");
    settle(*a);
    const FileGroup& group = a->whole ? a->everyone : a->group;
    Team::Vote vote;
    vote.differs = "item_bytes, count, layout or file_offset differ from those of rank 0";
    std::vector<std::uint64_t> bytes;
    struct Wires {
        std::uint64_t items = 0;
        std::vector<std::uint64_t> all;
    };
    const Kept<Wires> kept(*a->team);
    kept->items = items;
    std::vector<std::uint64_t>& of_all = kept->all;
    vote.mine = caught([&]() -> Result<> {
        TWR_CHECK(not_refused());
        if (count < 0 || (item_bytes == nullptr && count != 0))
            return refuse("item_bytes is NULL, or count is negative");
        if (layout != TWR_RECORDS && layout != TWR_BLOCKS && layout != TWR_VARIABLES) {
            return refuse("layout is " + std::to_string(layout) +
                          ", and may be TWR_RECORDS, TWR_BLOCKS or TWR_VARIABLES");
        }
        bytes.assign(item_bytes, item_bytes + count);
        of_all.resize(static_cast<std::size_t>(group.ranks));
        std::vector<std::uint64_t> all = bytes;
        all.push_back(static_cast<std::uint64_t>(layout));
        all.push_back(offset);
        vote.same = xxh3(std::as_bytes(std::span(all)));
        if (std::find(bytes.begin(), bytes.end(), 0U) != bytes.end()) return refuse("an item has no bytes");
        return success();
    });
    TWR_CHECK(a->team->agree(vote));
    MPI_Request request = MPI_REQUEST_NULL;
    TWR_MPI("MPI_Iallgather", MPI_Iallgather(&kept->items, 1, MPI_UINT64_T, of_all.data(), 1, MPI_UINT64_T,
                                             group.comm, &request));
    TWR_CHECK(a->team->finish(request, "the other ranks' number of items"));
    std::uint64_t before = 0;
    std::uint64_t total = 0;
    bool countable = true;
    for (std::size_t rank = 0; rank < of_all.size(); ++rank) {
        if (rank == static_cast<std::size_t>(group.rank)) before = total;
        const auto sum = checked_add(total, of_all[rank]);
        countable = countable && sum.has_value();
        total = sum.value_or(0);
    }
    auto sets = caught([&]() -> Result<std::vector<RankSet>> {
        const auto variables =
            countable ? records(bytes, items, before, total, layout, offset) : std::nullopt;
        if (!variables) return refuse("the file would end behind 2^63");
        return sets_of(variables->data(), count);
    });
    return put(a, std::move(sets), static_cast<std::uint64_t>(count));
}

}  // namespace twinrun::aggregation
