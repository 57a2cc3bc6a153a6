// What comparing two lists of fields found.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/packed_layouts.hpp"
#include "engine/packed_results.hpp"
#include "shared.hpp"

namespace twinrun {

namespace nb = nanobind;

// Where a part of a global array lies in it, in the order of the stored elements.
struct PartPlace {
    std::vector<std::uint64_t> shape;  // of the global array
    std::vector<std::uint64_t> offset;
};

// The results of all fields, in the order of the first run.
class ListResults {
   public:
    explicit ListResults(std::size_t count) : results_(count), failed_(count) {}

    // In the order of fields. names_of_files: names are bytes of files, not texts of Python.
    // place: empty where the field is no part of a global array.
    void describe(const NamedLayout& layout, bool names_of_files, PartPlace place = {}) {
        if (!place.shape.empty()) places_.emplace(layouts_.size(), std::move(place));
        layouts_.add(layout);
        names_of_files_ = names_of_files;
    }
    // Called as compare_fields() calls it.
    void take(std::size_t at, const Result<FieldResult>& result);
    void put(std::size_t at, const FieldResult& r, DType dtype);
    // There are so many fields at least.
    void expect(std::size_t count) {
        results_.expect(count);
        failed_.resize(results_.size());
    }
    [[nodiscard]] bool has(std::size_t at) const { return results_.has(at); }
    // When all were taken. interrupt: the exception that came meanwhile, if there was one; else
    // raises where somebody interrupted it.
    void finish(nb::object interrupt);
    void check() const {
        if (interrupted_) raise({ErrorCode::interrupted, "interrupted"});
    }
    // To be raised; None where nobody interrupted it. Gives it away: it would keep alive what it
    // came through.
    [[nodiscard]] nb::object take_interrupt();

    // Those of the fields [first, last), none of which failed.
    [[nodiscard]] ListResults part(std::size_t first, std::size_t last) const;

    [[nodiscard]] std::size_t size() const { return results_.size(); }
    [[nodiscard]] const std::vector<std::size_t>& different() const { return different_; }
    [[nodiscard]] std::vector<std::size_t> failed() const;
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
    [[nodiscard]] std::uint64_t bytes_read() const { return bytes_read_; }
    [[nodiscard]] PyFieldResult at(std::size_t at) const;
    [[nodiscard]] NamedLayout layout(std::size_t at) const;
    [[nodiscard]] nb::object name(std::size_t at) const;
    // None where the field is no part of a global array.
    [[nodiscard]] nb::object place(std::size_t at) const;

    // Somebody interrupted it.
    void interrupt() { interrupted_ = true; }

    using Place = std::tuple<std::size_t, std::vector<std::uint64_t>, std::vector<std::uint64_t>>;
    using State = std::tuple<nb::bytes, nb::bytes, std::vector<std::size_t>, std::vector<std::size_t>,
                             std::uint64_t, std::uint64_t, bool, std::vector<Place>>;
    [[nodiscard]] State state() const;
    static ListResults of(const State& state);

   private:
    PackedResults results_;
    PackedLayouts layouts_;
    std::map<std::size_t, PartPlace> places_;
    std::vector<bool> failed_;
    std::vector<std::size_t> different_;
    std::uint64_t bytes_ = 0;
    std::uint64_t bytes_read_ = 0;
    bool names_of_files_ = false;
    bool interrupted_ = false;
    nb::object interrupt_;
};

void define_list_results(nb::module_& m);

}  // namespace twinrun
