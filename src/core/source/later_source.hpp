// The elements of a field in files that may never be needed: the files are found and opened when
// they are.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "source/open_files.hpp"
#include "source/source.hpp"

namespace twinrun {

// Makes its FileSource at the first prepare(), and gives it back at release(). Most comparisons of
// metadata read no elements.
class LaterSource final : public ElementSource {
   public:
    // Where the elements lie. What the spans refer to outlives the source.
    struct Place {
        std::span<const std::string> paths;  // which extents refer to, by number
        std::span<const Extent> extents;
        ByteOrder byte_order = ByteOrder::little;
    };
    LaterSource(DType dtype, std::uint64_t items, const Place& place, CacheUse cache,
                std::shared_ptr<OpenFiles> files);

    // Error: an extent of a file that is not there, extents that do not cover the items; those of
    // FileSource.
    Result<> prepare() override;
    void release() override;
    [[nodiscard]] bool in_files() const override { return true; }

    // Of what prepare() made.
    [[nodiscard]] std::size_t buffer_bytes(std::uint64_t count) const override;
    Result<> plan(std::uint64_t first, std::uint64_t count, std::byte* buffer,
                  std::vector<ReadRequest>& requests) override;
    ElementView view(std::uint64_t first, std::uint64_t count, std::byte* buffer) override;
    [[nodiscard]] bool on_storage() const override;
    [[nodiscard]] bool only_points(std::uint64_t first, std::uint64_t count) const override;

   private:
    Place place_;
    CacheUse cache_;
    std::shared_ptr<OpenFiles> files_;
    std::mutex mutex_;
    std::unique_ptr<FileSource> source_;
};

}  // namespace twinrun
