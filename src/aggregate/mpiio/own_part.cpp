// What one rank knows of a call and does of it without asking the others: where its bytes lie, and
// moving them where nobody has to agree.
#include <dlfcn.h>

#include <algorithm>

#include "aggregate/mpi/descriptor.hpp"
#include "aggregate/mpi/target.hpp"
#include "aggregate/mpiio/own_part.hpp"
#include "base/caught.hpp"
#include "base/checked.hpp"

namespace twinrun::mpiio {

namespace {

// Memory of a GPU, which this library must not touch. Asks CUDA's driver, if the program has loaded
// it.
bool on_device(const void* buffer) {
    using Ask = int (*)(void*, int, unsigned long long);
    static const Ask ask = reinterpret_cast<Ask>(::dlsym(RTLD_DEFAULT, "cuPointerGetAttribute"));
    if (ask == nullptr || buffer == nullptr) return false;
    constexpr int kMemoryType = 2;  // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    constexpr unsigned kDevice = 2;
    unsigned type = 0;
    return ask(&type, kMemoryType, reinterpret_cast<std::uintptr_t>(buffer)) == 0 && type == kDevice;
}

}  // namespace

// ---- where the bytes lie ----

// The place of this rank's bytes in the view, in etypes.
Result<MPI_Offset> File::place(const Call& call, std::uint64_t bytes) {
    if (call.where == Where::at_offset) return MPI_Offset{call.offset};
    MPI_Offset at = 0;
    if (call.where == Where::own_pointer) {
        TWR_MPI("MPI_File_get_position", PMPI_File_get_position(handle_, &at));
        return MPI_Offset{at};
    }
    // Ranks follow each other from the shared pointer on.
    std::int64_t begin = -1;
    if (rank_ == 0 && PMPI_File_get_position_shared(handle_, &at) == MPI_SUCCESS) begin = at;
    auto own = static_cast<std::int64_t>(bytes / view_.etype_bytes);
    std::int64_t before = 0;
    std::int64_t total = own;
    TWR_MPI("MPI_Bcast", PMPI_Bcast(&begin, 1, MPI_INT64_T, 0, comm_));
    TWR_MPI("MPI_Exscan", PMPI_Exscan(&own, &before, 1, MPI_INT64_T, MPI_SUM, comm_));
    TWR_MPI("MPI_Allreduce", PMPI_Allreduce(MPI_IN_PLACE, &total, 1, MPI_INT64_T, MPI_SUM, comm_));
    if (rank_ == 0) before = 0;
    if (begin < 0)
        return Error{ErrorCode::unsupported, "MPI does not report where the shared file pointer is"};
    shared_begin_ = begin;
    shared_total_ = static_cast<std::uint64_t>(total);
    return static_cast<MPI_Offset>(begin + before);
}

Result<File::Layout> File::lay_out(const Call& call, MPI_Offset offset, Reason& reason) const {
    Layout layout;
    reason = kDatatype;
    TWR_TRY(const aggregation::TypeStream type, aggregation::stream_of(call.type));
    TWR_TRY(layout.memory, aggregation::stream_of_items(type, static_cast<std::uint64_t>(call.count)));
    layout.bytes = layout.memory.bytes();
    reason = kNone;
    if (layout.bytes == 0) return layout;
    if (on_device(call.buffer)) {
        reason = kDevice;
        return layout;
    }
    reason = kView;
    const auto begin = checked_multiply(static_cast<std::uint64_t>(offset), view_.etype_bytes);
    const auto end = begin ? checked_add(*begin, layout.bytes) : std::nullopt;
    if (!end) return Error{ErrorCode::invalid_argument, "the offset is too large"};
    TWR_TRY(layout.file,
            slice_of_tiles(view_.filetype.stream, view_.filetype.extent, view_.displacement, *begin, *end));
    TWR_CHECK(match(layout.file, layout.memory, 0, layout.parts));
    layout.begin = layout.parts.front().where.begin();
    layout.end = layout.parts.back().where.end();
    reason = layout.end > LastTransfer::kFarthest ? kFar : kNone;
    return layout;
}

// The bytes that this rank moves. Errors: arguments that MPI forbids.
Result<std::uint64_t> File::bytes_of(const Call& call) const {
    const auto refuse = [](const char* what) { return Error{ErrorCode::invalid_argument, what}; };
    if (call.count < 0) return refuse("count is negative");
    if (call.type == MPI_DATATYPE_NULL) return refuse("the datatype is MPI_DATATYPE_NULL");
    if (call.where == Where::at_offset && call.offset < 0) return refuse("the offset is negative");
    MPI_Count size = 0;
    TWR_MPI("MPI_Type_size_x", MPI_Type_size_x(call.type, &size));
    const auto all = checked_multiply(static_cast<std::uint64_t>(std::max<MPI_Count>(size, 0)),
                                      static_cast<std::uint64_t>(call.count));
    if (!all) return refuse("it has more than 2^64 bytes");
    if (view_.usable && *all % view_.etype_bytes != 0)
        return refuse("the data is not a whole number of the view's etypes");
    return *all;
}

// [collective]
File::OwnPart File::own_part(const Call& call) {
    OwnPart own;
    own.reason = view_.usable ? kNone : kView;
    const auto bytes = caught([&] { return bytes_of(call); });
    if (bytes) {
        own.bytes = *bytes;
    } else {
        own.checked = bytes.error();
    }
    const auto offset = place(call, own.bytes);
    if (offset) {
        own.offset = *offset;
    } else if (own.reason == kNone) {
        own.reason = kView;
    }
    if (!own.checked || own.reason != kNone) return own;
    auto laid = caught([&] { return lay_out(call, own.offset, own.reason); });
    if (laid) {
        own.layout = std::move(*laid);
    } else if (own.reason == kNone || laid.error().code == ErrorCode::out_of_memory) {
        own.reason = kNoMemory;
    }
    return own;
}

Result<> File::pass_pointer(const Call& call, std::uint64_t bytes) {
    if (call.where == Where::own_pointer) {
        MPI_Offset at = 0;
        TWR_MPI("MPI_File_get_position", PMPI_File_get_position(handle_, &at));
        at += static_cast<MPI_Offset>(bytes / view_.etype_bytes);
        TWR_MPI("MPI_File_seek", PMPI_File_seek(handle_, at, MPI_SEEK_SET));
    } else if (call.where == Where::shared_pointer) {
        TWR_MPI("MPI_File_seek_shared",
                PMPI_File_seek_shared(handle_, shared_begin_ + static_cast<MPI_Offset>(shared_total_),
                                      MPI_SEEK_SET));
    }
    return success();
}

// ---- moving them without the others ----

namespace {

// The parts of a call, where they are one stretch of the file and of memory.
std::optional<aggregation::Piece> stretch_of(const std::vector<ArrayPart>& parts, void* buffer) {
    if (parts.size() != 1) return std::nullopt;
    const ArrayPart& part = parts.front();
    const bool dense =
        part.where.count == 1 ||
        (part.where.dense() && part.memory_stride == static_cast<std::int64_t>(part.where.width));
    if (!dense) return std::nullopt;
    return aggregation::Piece{part.where.begin(), static_cast<std::byte*>(buffer) + part.memory_offset,
                              part.where.bytes()};
}

}  // namespace

// Of a file that only this rank has opened: a call of the system, and nobody to agree with.
Answer File::move_piece(Mode mode, const aggregation::Piece& piece) const {
    std::uint64_t bytes = piece.count;
    const auto moved = caught([&]() -> Result<> {
        aggregation::Descriptor file;
        TWR_CHECK(file.adopt({number_, name_, 0}, mode));
        if (mode == Mode::write) return file.transfer(std::span(&piece, 1));
        TWR_TRY(bytes, file.read_to_end(piece));
        return success();
    });
    return moved ? Answer{Fate::moved, bytes, {}} : failed(moved.error());
}

// Where view and datatype have no holes, without a list of pieces. nullopt: it is not that, or it
// has an error, which the longer way finds.
std::optional<Answer> File::move_stretch(const Call& call) {
    if (!view_.whole || call.where == Where::shared_pointer || call.count <= 0 || on_device(call.buffer))
        return std::nullopt;
    const auto item = aggregation::dense_item(call.type);
    if (!item) return std::nullopt;
    const auto bytes = checked_multiply(*item, static_cast<std::uint64_t>(call.count));
    if (!bytes || *bytes % view_.etype_bytes != 0) return std::nullopt;
    const auto offset = place(call, *bytes);
    if (!offset || *offset < 0) return std::nullopt;
    const auto begin = checked_multiply(static_cast<std::uint64_t>(*offset), view_.etype_bytes);
    const auto from =
        begin ? checked_add(*begin, static_cast<std::uint64_t>(view_.displacement)) : std::nullopt;
    const auto end = from ? checked_add(*from, *bytes) : std::nullopt;
    if (!end || *end > LastTransfer::kFarthest) return std::nullopt;
    Answer answer = move_piece(call.mode, {*from, static_cast<std::byte*>(call.buffer), *bytes});
    if (answer.fate != Fate::moved) return answer;
    if (auto passed = pass_pointer(call, *bytes); !passed) return failed(passed.error());
    return answer;
}

std::optional<Answer> File::move_alone(const Call& call, const OwnPart& own) const {
    if (!own.checked || own.reason != kNone) return std::nullopt;
    if (own.layout.parts.empty()) return Answer{Fate::moved, 0, {}};
    const auto piece = stretch_of(own.layout.parts, call.buffer);
    if (!piece) return std::nullopt;
    return move_piece(call.mode, *piece);
}

// Reads this rank's bytes before the ranks agree, where they are one stretch and an aggregator
// would not read them at less cost. Returns how many there are. If all ranks have done so, the
// agreement is the end of the call. Otherwise all go the longer way, which reads them again.
//
// No rank waits for the others here. A rank that has changed a file by MPI-IO itself since the last
// agreement may have done so after others had read. It votes against, and all read again.
std::optional<std::uint64_t> File::read_ahead(const Call& call, const OwnPart& own) {
    if (call.mode != Mode::read || !own.checked || own.reason != kNone) return std::nullopt;
    if (own.layout.parts.empty()) return 0;
    if (ahead_pause_ != 0) return std::nullopt;
    const auto piece = stretch_of(own.layout.parts, call.buffer);
    if (!piece) return std::nullopt;
    if (!least_ahead_) {
        // The block is not asked for, which spares each rank a question to Lustre.
        constexpr std::uint64_t kAnyBlock = 4096;
        const auto traits = caught([&] {
            return aggregation::storage_traits("/proc/self/fd/" + std::to_string(number_), kAnyBlock);
        });
        least_ahead_ = traits ? traits->direct.least_alone : UINT64_MAX;
    }
    if (piece->count < *least_ahead_) return std::nullopt;
    // An error is met again on the longer way, which reports it to all ranks.
    const auto bytes = caught([&]() -> Result<std::uint64_t> {
        aggregation::Descriptor file;
        TWR_CHECK(file.adopt({number_, name_, 0}, call.mode));
        return file.read_to_end(*piece);
    });
    if (!bytes) return std::nullopt;
    return *bytes;
}

}  // namespace twinrun::mpiio
