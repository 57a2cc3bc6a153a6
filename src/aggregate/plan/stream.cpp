#include "aggregate/plan/stream.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/checked.hpp"

namespace twinrun {
inline namespace aggregate_plan {

namespace {

constexpr std::int64_t kFarthest = std::int64_t{1} << 62;

Error too_many(const char* what) {
    return Error{ErrorCode::unsupported, std::string("more than ") + std::to_string(kMostRuns) + " " + what};
}

Error too_far() {
    return Error{ErrorCode::invalid_argument, "places lie farther than 2^62 bytes from the origin"};
}

bool within_limits(std::int64_t at) { return at >= -kFarthest && at <= kFarthest; }

// Whether all places of a run lie within the limits.
bool fits(const Run& run) {
    std::int64_t span = 0;
    std::int64_t last = 0;
    if (run.width > static_cast<std::uint64_t>(kFarthest) ||
        run.count > static_cast<std::uint64_t>(kFarthest))
        return false;
    if (__builtin_mul_overflow(static_cast<std::int64_t>(run.count - 1), run.stride, &span) ||
        __builtin_add_overflow(run.offset, span, &last))
        return false;
    return within_limits(run.offset) && within_limits(last) &&
           within_limits(run.offset + static_cast<std::int64_t>(run.width)) &&
           within_limits(last + static_cast<std::int64_t>(run.width));
}

std::int64_t width_of(const Run& run) { return static_cast<std::int64_t>(run.width); }

}  // namespace

Result<> Stream::append(Run run) {
    if (run.width == 0 || run.count == 0) return success();
    if (run.count == 1) run.stride = width_of(run);
    if (!fits(run)) return too_far();
    if (run.count > 1 && run.stride == width_of(run)) {
        run.width *= run.count;
        run.count = 1;
        run.stride = width_of(run);
    }
    const auto total = checked_add(bytes_, run.bytes());
    if (!total || *total > static_cast<std::uint64_t>(kFarthest)) return too_far();
    bytes_ = *total;
    if (!runs_.empty()) {
        Run& last = runs_.back();
        if (last.count == 1 && run.count == 1 && last.offset + width_of(last) == run.offset) {
            last.width += run.width;
            last.stride = width_of(last);
            return success();
        }
        const std::int64_t step = last.count > 1 ? last.stride : run.offset - last.offset;
        if (last.width == run.width && run.offset == last.at(last.count - 1) + step &&
            (run.count == 1 || run.stride == step)) {
            last.stride = step;
            last.count += run.count;
            return success();
        }
    }
    if (runs_.size() == kMostRuns) return too_many("pieces in a datatype or a block");
    runs_.push_back(run);
    return success();
}

Result<> Stream::append(const Stream& other, std::int64_t shift) {
    for (Run run : other.runs_) {
        if (__builtin_add_overflow(run.offset, shift, &run.offset)) return too_far();
        TWR_CHECK(append(run));
    }
    return success();
}

Result<Stream> repeated(const Stream& stream, std::uint64_t times, std::int64_t stride) {
    Stream all;
    if (times == 0 || stream.empty()) return all;
    const std::span<const Run> runs = stream.runs();
    if (runs.size() == 1) {
        Run run = runs.front();
        if (run.count == 1) {
            run.count = times;
            run.stride = stride;
            TWR_CHECK(all.append(run));
            return all;
        }
        std::int64_t span = 0;
        const auto count = checked_multiply(run.count, times);
        if (count && !__builtin_mul_overflow(run.stride, static_cast<std::int64_t>(run.count), &span) &&
            span == stride) {
            run.count = *count;
            TWR_CHECK(all.append(run));
            return all;
        }
    }
    // Runs are never joined to less than one for each two copies.
    const auto least = checked_multiply(runs.size(), times);
    if (!least || *least / 2 > kMostRuns) return too_many("pieces in a datatype or a block");
    for (std::uint64_t i = 0; i < times; ++i) {
        std::int64_t shift = 0;
        if (__builtin_mul_overflow(static_cast<std::int64_t>(i), stride, &shift)) return too_far();
        TWR_CHECK(all.append(stream, shift));
    }
    return all;
}

namespace {

// Adds a part of one run: its bytes number `begin` to `end` - 1.
Result<> append_slice(Stream& to, const Run& run, std::uint64_t begin, std::uint64_t end) {
    std::uint64_t item = begin / run.width;
    const std::uint64_t head = begin % run.width;
    if (head != 0) {
        const std::uint64_t length = std::min(run.width - head, end - begin);
        TWR_CHECK(to.append({run.at(item) + static_cast<std::int64_t>(head), length, 1, 0}));
        begin += length;
        ++item;
    }
    const std::uint64_t whole = (end - begin) / run.width;
    if (whole != 0) TWR_CHECK(to.append({run.at(item), run.width, whole, run.stride}));
    const std::uint64_t tail = (end - begin) % run.width;
    if (tail != 0) TWR_CHECK(to.append({run.at(item + whole), tail, 1, 0}));
    return success();
}

}  // namespace

Result<Stream> slice(const Stream& stream, std::uint64_t begin, std::uint64_t end) {
    Stream part;
    std::uint64_t passed = 0;
    for (const Run& run : stream.runs()) {
        if (passed >= end) break;
        const std::uint64_t first = std::max(begin, passed);
        const std::uint64_t last = std::min(end, passed + run.bytes());
        if (first < last) TWR_CHECK(append_slice(part, run, first - passed, last - passed));
        passed += run.bytes();
    }
    return part;
}

Result<Stream> slice_of_tiles(const Stream& tile, std::int64_t extent, std::int64_t shift,
                              std::uint64_t begin, std::uint64_t end) {
    Stream all;
    if (begin >= end) return all;
    const std::uint64_t size = tile.bytes();
    const auto place = [&](std::uint64_t number, std::int64_t& at) {
        return number <= static_cast<std::uint64_t>(kFarthest) &&
               !__builtin_mul_overflow(static_cast<std::int64_t>(number), extent, &at) &&
               !__builtin_add_overflow(at, shift, &at);
    };
    std::uint64_t number = begin / size;
    std::int64_t at = 0;
    if (begin % size != 0 || end - begin < size) {
        const std::uint64_t last = std::min(end - number * size, size);
        if (!place(number, at)) return too_far();
        TWR_TRY(const Stream head, slice(tile, begin % size, last));
        TWR_CHECK(all.append(head, at));
        begin = number * size + last;
        ++number;
        if (begin >= end) return all;
    }
    const std::uint64_t whole = (end - begin) / size;
    if (whole != 0) {
        if (!place(number, at)) return too_far();
        TWR_TRY(const Stream tiles, repeated(tile, whole, extent));
        TWR_CHECK(all.append(tiles, at));
    }
    const std::uint64_t left = (end - begin) % size;
    if (left != 0) {
        if (!place(number + whole, at)) return too_far();
        TWR_TRY(const Stream tail, slice(tile, 0, left));
        TWR_CHECK(all.append(tail, at));
    }
    return all;
}

std::uint64_t bytes_before(const Stream& stream, std::int64_t end) {
    std::uint64_t passed = 0;
    for (const Run& run : stream.runs()) {
        if (run.offset >= end) return passed;
        const std::int64_t stride = std::max<std::int64_t>(run.stride, 1);
        const auto begun =
            std::min(run.count, static_cast<std::uint64_t>((end - run.offset - 1) / stride) + 1);
        const std::uint64_t last = std::min(run.width, static_cast<std::uint64_t>(end - run.at(begun - 1)));
        passed += (begun - 1) * run.width + last;
        if (begun < run.count || last < run.width) return passed;
    }
    return passed;
}

namespace {

// A place in a stream.
class Cursor {
   public:
    explicit Cursor(const Stream& stream) : runs_(stream.runs()) {}
    [[nodiscard]] bool end() const { return at_ == runs_.size(); }
    [[nodiscard]] const Run& run() const { return runs_[at_]; }
    // Bytes that are left of the current piece, and pieces that are left of the run, with this one.
    [[nodiscard]] std::uint64_t left() const { return run().width - within_; }
    [[nodiscard]] std::uint64_t pieces() const { return run().count - item_; }
    [[nodiscard]] bool at_piece() const { return within_ == 0; }
    [[nodiscard]] std::int64_t place() const { return run().at(item_) + static_cast<std::int64_t>(within_); }
    void pass_pieces(std::uint64_t count) {
        item_ += count;
        next_run();
    }
    void pass_bytes(std::uint64_t count) {
        within_ += count;
        if (within_ < run().width) return;
        within_ = 0;
        ++item_;
        next_run();
    }

   private:
    void next_run() {
        if (item_ < run().count) return;
        item_ = 0;
        ++at_;
    }
    std::span<const Run> runs_;
    std::size_t at_ = 0;
    std::uint64_t item_ = 0;
    std::uint64_t within_ = 0;
};

}  // namespace

Result<> match(const Stream& file, const Stream& memory, std::uint32_t variable,
               std::vector<ArrayPart>& parts) {
    if (file.bytes() != memory.bytes()) {
        return Error{ErrorCode::internal, "the file's part has " + std::to_string(file.bytes()) +
                                              " bytes, and the memory's " + std::to_string(memory.bytes())};
    }
    std::int64_t reached = 0;
    for (const Run& run : file.runs()) {
        if (run.offset < reached || (run.count > 1 && run.stride < width_of(run))) {
            return Error{ErrorCode::invalid_argument,
                         run.offset < 0 ? "a place in the file is negative"
                                        : "places in the file do not ascend, or lie on each other"};
        }
        reached = run.at(run.count - 1) + width_of(run);
    }
    const std::size_t first = parts.size();
    const auto add = [&](std::int64_t at, std::uint64_t width, std::uint64_t count, std::int64_t stride,
                         std::int64_t memory_at, std::int64_t memory_stride) -> bool {
        const auto offset = static_cast<std::uint64_t>(at);
        if (count == 1 || (stride == static_cast<std::int64_t>(width) && memory_stride == stride)) {
            width *= count;
            count = 1;
            ArrayPart* const last = parts.size() > first ? &parts.back() : nullptr;
            if (last != nullptr && last->where.count == 1 && last->where.end() == offset &&
                last->memory_offset + static_cast<std::int64_t>(last->where.width) == memory_at) {
                last->where.width += width;
                last->where.stride = last->where.width;
                last->memory_stride = static_cast<std::int64_t>(last->where.width);
                return true;
            }
            stride = memory_stride = static_cast<std::int64_t>(width);
        }
        if (parts.size() - first == kMostRuns) return false;
        parts.push_back(
            {variable, {offset, width, count, static_cast<std::uint64_t>(stride)}, memory_at, memory_stride});
        return true;
    };
    Cursor to(file);
    Cursor from(memory);
    while (!to.end()) {
        const std::uint64_t there = to.left();
        const std::uint64_t here = from.left();
        const std::int64_t at = to.place();
        const std::int64_t memory_at = from.place();
        bool room = true;
        if (to.at_piece() && from.at_piece() && there == here) {
            const std::uint64_t count = std::min(to.pieces(), from.pieces());
            room = add(at, there, count, to.run().stride, memory_at, from.run().stride);
            to.pass_pieces(count);
            from.pass_pieces(count);
        } else if (to.at_piece() && here >= there) {
            const std::uint64_t count = std::min(to.pieces(), here / there);
            room = add(at, there, count, to.run().stride, memory_at, static_cast<std::int64_t>(there));
            to.pass_pieces(count);
            from.pass_bytes(count * there);
        } else if (from.at_piece() && there >= here) {
            const std::uint64_t count = std::min(from.pieces(), there / here);
            room = add(at, here, count, static_cast<std::int64_t>(here), memory_at, from.run().stride);
            from.pass_pieces(count);
            to.pass_bytes(count * here);
        } else {
            const std::uint64_t width = std::min(there, here);
            const auto step = static_cast<std::int64_t>(width);
            room = add(at, width, 1, step, memory_at, step);
            to.pass_bytes(width);
            from.pass_bytes(width);
        }
        if (!room) return too_many("pieces where the file and memory are matched");
    }
    return success();
}

namespace {

// The items of a hyper-rectangle of an array, from the array's first byte on.
Result<Stream> rectangle(std::uint64_t item_bytes, ArrayOrder order, std::span<const std::uint64_t> array,
                         std::span<const std::uint64_t> start, std::span<const std::uint64_t> shape) {
    Stream stream;
    TWR_CHECK(stream.append({0, item_bytes, 1, 0}));
    auto stride = static_cast<std::int64_t>(item_bytes);
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < array.size(); ++i) {
        const std::size_t d = order == ArrayOrder::c ? array.size() - 1 - i : i;
        TWR_TRY(stream, repeated(stream, shape[d], stride));
        begin += static_cast<std::int64_t>(start[d]) * stride;
        stride *= static_cast<std::int64_t>(array[d]);
    }
    Stream placed;
    TWR_CHECK(placed.append(stream, begin));
    return placed;
}

}  // namespace

Result<> block_parts(const Block& block, std::uint32_t number, std::vector<ArrayPart>& parts) {
    const auto refuse = [&](const std::string& what) {
        return Error{ErrorCode::invalid_argument, "block " + std::to_string(number) + ": " + what};
    };
    if (block.item_bytes == 0) return refuse("its items have no bytes: item_bytes is 0");
    const auto check = [&](const char* name, std::span<const std::uint64_t> array,
                           std::span<const std::uint64_t> start) -> Result<> {
        auto bytes = std::optional(block.item_bytes);
        bool empty = false;
        for (std::size_t d = 0; d < array.size(); ++d) {
            const auto end = checked_add(start[d], block.shape[d]);
            if (!end || *end > array[d]) {
                return refuse("it leaves the " + std::string(name) + " array in dimension " +
                              std::to_string(d) + ": it begins at " + std::to_string(start[d]) + ", has " +
                              std::to_string(block.shape[d]) + " items, and the array has " +
                              std::to_string(array[d]));
            }
            empty = empty || array[d] == 0;
            if (array[d] != 0) bytes = bytes ? checked_multiply(*bytes, array[d]) : std::nullopt;
        }
        if (!empty && (!bytes || *bytes >= static_cast<std::uint64_t>(kFarthest)))
            return refuse("the " + std::string(name) + " array has 2^62 bytes or more");
        return success();
    };
    TWR_CHECK(check("global", block.global_shape, block.start));
    TWR_CHECK(check("local", block.local_shape, block.local_start));
    if (block.file_offset >= static_cast<std::uint64_t>(kFarthest)) return refuse("it begins behind 2^62");
    if (std::find(block.shape.begin(), block.shape.end(), 0U) != block.shape.end()) return success();
    const auto make = [&]() -> Result<> {
        TWR_TRY(const Stream items,
                rectangle(block.item_bytes, block.order, block.global_shape, block.start, block.shape));
        Stream file;
        TWR_CHECK(file.append(items, static_cast<std::int64_t>(block.file_offset)));
        TWR_TRY(const Stream memory,
                rectangle(block.item_bytes, block.order, block.local_shape, block.local_start, block.shape));
        return match(file, memory, number, parts);
    };
    auto made = make();
    if (!made) return std::move(made).error().at("block " + std::to_string(number));
    return success();
}

}  // namespace aggregate_plan
}  // namespace twinrun
