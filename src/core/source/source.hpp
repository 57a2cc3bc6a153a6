// Where the elements of one field come from: a file's extents, memory, or a decoder. One interface
// for the streams.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "element/convert.hpp"
#include "metadata/metadata.hpp"
#include "platform/file_io.hpp"
#include "source/open_files.hpp"

namespace twinrun {

struct DeviceArray;

// Whether reads go through the page cache.
enum class CacheUse : std::uint8_t { automatic, buffered, direct };

// Items of one field, in the order of its flattened array. Thread-safe.
class ElementSource {
   public:
    ElementSource(DType dtype, std::uint64_t items) : dtype_(dtype), items_(items) {}
    virtual ~ElementSource() = default;

    [[nodiscard]] DType dtype() const { return dtype_; }
    [[nodiscard]] std::uint64_t items() const { return items_; }
    // Buffer bytes that `count` consecutive items need at most.
    [[nodiscard]] virtual std::size_t buffer_bytes(std::uint64_t count) const = 0;
    // Adds the reads that bring items [first, first + count) into the buffer (aligned to
    // kDirectAlignment), or brings them at once. The requests' tags are the caller's to set.
    virtual Result<> plan(std::uint64_t first, std::uint64_t count, std::byte* buffer,
                          std::vector<ReadRequest>& requests) = 0;
    // The items, when the reads are done. Valid as long as the buffer is.
    virtual ElementView view(std::uint64_t first, std::uint64_t count, std::byte* buffer) = 0;
    // Opens what needs opening; called before the first plan.
    virtual Result<> prepare() { return success(); }
    // Gives back what prepare() opened; it can be prepared again. Nothing may be reading.
    virtual void release() {}
    // True if items lie in files as they are: any thread may read them, without a lock that others
    // need.
    [[nodiscard]] virtual bool in_files() const { return false; }
    // True if reads mostly go to storage, not to memory: for the planner's gaps.
    [[nodiscard]] virtual bool on_storage() const { return false; }
    // True if views point into the caller's memory, and no buffer is needed.
    [[nodiscard]] virtual bool in_memory() const { return false; }
    // True if view() of these items only points into the buffer and does not look into it: then
    // reads may go to memory that the host cannot see.
    [[nodiscard]] virtual bool only_points(std::uint64_t /*first*/, std::uint64_t /*count*/) const {
        return false;
    }
    // The array on a device whose elements these are, if that is where they lie.
    [[nodiscard]] virtual const DeviceArray* device_array() const { return nullptr; }

   private:
    DType dtype_;
    std::uint64_t items_;
};

// An array in memory, dense or strided. The memory must outlive the source.
class MemorySource final : public ElementSource {
   public:
    MemorySource(DType dtype, std::uint64_t items, const void* data, std::uint64_t stride, bool swap);
    [[nodiscard]] std::size_t buffer_bytes(std::uint64_t) const override { return 0; }
    Result<> plan(std::uint64_t, std::uint64_t, std::byte*, std::vector<ReadRequest>&) override {
        return success();
    }
    ElementView view(std::uint64_t first, std::uint64_t count, std::byte* buffer) override;
    [[nodiscard]] bool in_memory() const override { return true; }

   private:
    ElementView all_;
};

struct PathExtent {
    std::string path;
    std::uint64_t offset = 0;
    std::uint64_t stride = 0;
    std::uint64_t count = 0;
};

// Items that lie in files as they are.
class FileSource final : public ElementSource {
   public:
    // shared: files that other sources have open too; null: this one opens its own.
    // Errors: extents that do not cover `items`, or whose sizes overflow.
    static Result<std::unique_ptr<FileSource>> create(DType dtype, ByteOrder order, std::uint64_t items,
                                                      std::vector<PathExtent> extents, CacheUse cache,
                                                      std::shared_ptr<OpenFiles> shared = nullptr);
    // Opens the files; error: one is missing or shorter than its extents.
    Result<> prepare() override;
    void release() override;
    [[nodiscard]] bool in_files() const override { return true; }
    [[nodiscard]] std::size_t buffer_bytes(std::uint64_t count) const override;
    Result<> plan(std::uint64_t first, std::uint64_t count, std::byte* buffer,
                  std::vector<ReadRequest>& requests) override;
    ElementView view(std::uint64_t first, std::uint64_t count, std::byte* buffer) override;
    [[nodiscard]] bool on_storage() const override { return direct_ || remote_; }
    [[nodiscard]] bool only_points(std::uint64_t first, std::uint64_t count) const override;

   private:
    struct Piece {  // of a request for items: within one extent
        std::size_t extent;
        std::uint64_t first;  // item of the extent
        std::uint64_t count;
        // Where its window begins in the file, a multiple of kDirectAlignment.
        std::uint64_t window;
        std::size_t window_bytes;
        std::size_t skip;  // bytes of the window before the first item
    };
    FileSource(DType dtype, std::uint64_t items) : ElementSource(dtype, items) {}
    template <class Visit>
    void pieces(std::uint64_t first, std::uint64_t count, Visit visit) const;

    std::vector<PathExtent> extents_;
    std::vector<std::uint64_t> begins_;              // first item of each extent, and the end
    std::vector<std::shared_ptr<InputFile>> files_;  // of each extent
    std::shared_ptr<OpenFiles> shared_;
    std::uint64_t largest_stride_ = 0;
    bool swap_ = false;
    bool all_dense_ = true;
    CacheUse cache_ = CacheUse::automatic;
    bool direct_ = false;
    bool remote_ = false;  // some of it is an object elsewhere
    std::mutex mutex_;
};

// Items that a reader decodes (compressed or chunked storage). `fetch` puts items [first, first +
// count) densely, in native byte order, at `to`; it is called from several threads.
class DecodedSource final : public ElementSource {
   public:
    using Fetch = std::function<Result<>(std::uint64_t first, std::uint64_t count, std::byte* to)>;
    DecodedSource(DType dtype, std::uint64_t items, Fetch fetch)
        : ElementSource(dtype, items), fetch_(std::move(fetch)) {}
    [[nodiscard]] std::size_t buffer_bytes(std::uint64_t count) const override {
        return count * item_bytes(dtype());
    }
    Result<> plan(std::uint64_t first, std::uint64_t count, std::byte* buffer,
                  std::vector<ReadRequest>&) override {
        return fetch_(first, count, buffer);
    }
    ElementView view(std::uint64_t, std::uint64_t, std::byte* buffer) override {
        return dense_view(dtype(), buffer);
    }

   private:
    Fetch fetch_;
};

// Items [first, first + count), dense and in native byte order, to `to` (count * item_bytes): for
// small parts, one read after another. Errors: a range behind the end, and those of reading.
Result<> read_items(ElementSource& source, std::uint64_t first, std::uint64_t count, std::byte* to);

// Raw bits (zero-extended, native order) of one scalar, read for a report.
Result<std::uint64_t> read_scalar(ElementSource& source, std::uint64_t scalar);

}  // namespace twinrun
