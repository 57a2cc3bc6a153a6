#include "engine/packed_layouts.hpp"

#include <algorithm>

#include "base/checksum.hpp"
#include "base/codec.hpp"

namespace twinrun {

namespace {
Error no_fields() { return {ErrorCode::damaged, "these are not the fields of a comparison"}; }
}  // namespace

void PackedLayouts::add(const NamedLayout& layout) {
    const auto alike = [&](const Kind& kind) {
        return kind.dtype == layout.dtype && kind.fortran_order == layout.fortran_order &&
               kind.rule == layout.rule && kind.tolerance.atol == layout.tolerance.atol &&
               kind.tolerance.rtol == layout.tolerance.rtol && std::ranges::equal(kind.shape, layout.shape);
    };
    std::size_t kind = kinds_.size();
    for (std::size_t back = 1; back <= std::min(kLookedAt, kinds_.size()); ++back) {
        if (alike(kinds_[kinds_.size() - back])) {
            kind = kinds_.size() - back;
            break;
        }
    }
    if (kind == kinds_.size()) {
        kinds_.push_back({layout.dtype,
                          layout.fortran_order,
                          layout.rule,
                          layout.tolerance,
                          {layout.shape.begin(), layout.shape.end()}});
    }
    names_.append(layout.name);
    entries_.push_back({names_.size(), kind});
}

NamedLayout PackedLayouts::get(std::size_t at) const {
    const std::uint64_t begin = at == 0 ? 0 : entries_[at - 1].name_end;
    const Kind& kind = kinds_[entries_[at].kind];
    return {std::string_view(names_).substr(begin, entries_[at].name_end - begin),
            kind.dtype,
            kind.fortran_order,
            kind.shape,
            kind.rule,
            kind.tolerance};
}

std::vector<std::byte> PackedLayouts::bytes() const {
    Encoder out;
    out.put(std::uint64_t{names_.size()});
    out.put_bytes(std::as_bytes(std::span(names_)));
    out.put(std::uint64_t{entries_.size()});
    for (const Entry& entry : entries_) {
        out.put(entry.name_end);
        out.put(entry.kind);
    }
    out.put(std::uint64_t{kinds_.size()});
    for (const Kind& kind : kinds_) {
        out.put(static_cast<std::uint8_t>(kind.dtype));
        out.put(static_cast<std::uint8_t>(kind.fortran_order ? 1 : 0));
        out.put(kind.rule);
        out.put_f64(kind.tolerance.atol);
        out.put_f64(kind.tolerance.rtol);
        out.put(std::uint64_t{kind.shape.size()});
        for (const std::uint64_t size : kind.shape)
            out.put(size);
    }
    out.put(xxh3(out.bytes()));
    return out.bytes();
}

Result<PackedLayouts> PackedLayouts::from(std::span<const std::byte> bytes) {
    constexpr std::size_t kSum = sizeof(std::uint64_t);
    if (bytes.size() < kSum) return no_fields();
    Decoder sum(bytes.last(kSum));
    if (sum.get<std::uint64_t>() != xxh3(bytes.first(bytes.size() - kSum))) return no_fields();
    Decoder in(bytes.first(bytes.size() - kSum));
    PackedLayouts made;
    const auto length = in.get<std::uint64_t>();
    if (in.remaining() < length) return no_fields();
    made.names_.reserve(length);
    for (std::uint64_t i = 0; i < length; ++i)
        made.names_.push_back(static_cast<char>(in.get<std::uint8_t>()));
    const auto entries = in.get<std::uint64_t>();
    if (in.remaining() / (2 * sizeof(std::uint64_t)) < entries) return no_fields();
    std::uint64_t end = 0;
    for (std::uint64_t i = 0; i < entries; ++i) {
        const auto name_end = in.get<std::uint64_t>();
        made.entries_.push_back({name_end, in.get<std::uint64_t>()});
        if (name_end < end || name_end > length) return no_fields();
        end = name_end;
    }
    const auto kinds = in.get<std::uint64_t>();
    if (in.remaining() / (4 * sizeof(std::uint64_t)) < kinds) return no_fields();
    for (std::uint64_t i = 0; i < kinds; ++i) {
        Kind kind;
        const auto dtype = dtype_from_number(in.get<std::uint8_t>());
        if (!dtype) return no_fields();
        kind.dtype = *dtype;
        kind.fortran_order = in.get<std::uint8_t>() != 0;
        kind.rule = in.get<std::uint64_t>();
        kind.tolerance.atol = in.get_f64();
        kind.tolerance.rtol = in.get_f64();
        const auto dimensions = in.get<std::uint64_t>();
        if (in.remaining() / sizeof(std::uint64_t) < dimensions) return no_fields();
        for (std::uint64_t d = 0; d < dimensions; ++d)
            kind.shape.push_back(in.get<std::uint64_t>());
        made.kinds_.push_back(std::move(kind));
    }
    const bool known = std::ranges::all_of(made.entries_, [&](const Entry& e) { return e.kind < kinds; });
    if (in.failed() || in.remaining() != 0 || !known) return no_fields();
    return made;
}

}  // namespace twinrun
