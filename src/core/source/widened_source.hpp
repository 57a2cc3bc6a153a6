// The elements of another source in a wider type, which holds each of its values exactly: so that
// fields of different types are compared by their values.
#pragma once

#include <cstdint>
#include <memory>

#include "source/source.hpp"

namespace twinrun {

// Whether `to` holds every value of `from`. Real numbers have no place in complex types, nor the
// other way round.
[[nodiscard]] bool holds_exactly(DType to, DType from);

// Takes the reads of the source below, and converts what they brought, when it is looked at, behind
// them in the buffer. A NaN stays a NaN, and so do infinities and the sign of zero.
class WidenedSource final : public ElementSource {
   public:
    // to: f64, i64, u64 or c128. Error: it does not hold all values of the source's type.
    static Result<std::unique_ptr<WidenedSource>> create(DType to, std::shared_ptr<ElementSource> below);

    Result<> prepare() override { return below_->prepare(); }
    void release() override { below_->release(); }
    [[nodiscard]] bool in_files() const override { return below_->in_files(); }
    [[nodiscard]] bool on_storage() const override { return below_->on_storage(); }
    [[nodiscard]] std::size_t buffer_bytes(std::uint64_t count) const override;
    Result<> plan(std::uint64_t first, std::uint64_t count, std::byte* buffer,
                  std::vector<ReadRequest>& requests) override {
        return below_->plan(first, count, buffer, requests);
    }
    ElementView view(std::uint64_t first, std::uint64_t count, std::byte* buffer) override;

   private:
    WidenedSource(DType to, std::shared_ptr<ElementSource> below)
        : ElementSource(to, below->items()), below_(std::move(below)) {}

    std::shared_ptr<ElementSource> below_;
};

}  // namespace twinrun
