#include "started_pairs.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <memory>

#include "source/device_array.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace twinrun {

namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(50);

bool is_same(const DifferenceRule& x, const DifferenceRule& y) {
    return x.tolerance.atol == y.tolerance.atol && x.tolerance.rtol == y.tolerance.rtol &&
           x.nan_equal == y.nan_equal && x.measure.ulps == y.measure.ulps &&
           x.measure.period == y.measure.period && x.measure.components == y.measure.components &&
           x.measure.component_stride == y.measure.component_stride;
}

// The lists of two containers, as FieldList::of_arrays() gives them, and what was begun of them;
// None where nothing was.
nb::tuple start_lists(nb::handle a, nb::handle b, const nb::object& flatten, bool on_devices,
                      const DifferenceRule& of_floating, const DifferenceRule& of_others,
                      const PyCompareOptions& how, bool may_leave) {
    ArrayWalk walk_a(a, flatten, on_devices);
    ArrayWalk walk_b(b, flatten, on_devices);
    auto started = std::make_unique<StartedPairs>(of_floating, of_others, how);
    while (walk_a.next() && walk_b.next()) {
        if (!started->add(walk_a.list(), walk_b.list())) break;
    }
    started->start(may_leave);
    while (walk_a.next()) {
    }
    while (walk_b.next()) {
    }
    auto list_a = walk_a.finish();
    auto list_b = walk_b.finish();
    if (!list_a || !list_b) started = nullptr;
    const auto object_of = [](std::optional<FieldList>& list) -> nb::object {
        return list ? nb::cast(std::move(*list)) : nb::none();
    };
    nb::object object_a = object_of(list_a);
    nb::object object_b = object_of(list_b);
    if (started == nullptr) return nb::make_tuple(object_a, object_b, nb::none());
    started->hold(object_a, object_b);
    return nb::make_tuple(object_a, object_b, nb::cast(started.release(), nb::rv_policy::take_ownership));
}

}  // namespace

bool StartedPairs::add(const FieldList& a, const FieldList& b) {
    const std::size_t known = std::min(a.fields().size(), b.fields().size());
    started_.resize(known);
    for (; seen_ < known; ++seen_) {
        const TakenField& x = a.fields()[seen_];
        const TakenField& y = b.fields()[seen_];
        if (x.text != y.text) return false;
        if (x.device == kHostMemory || x.device != y.device) continue;
        if (!x.strides.empty() || !y.strides.empty() || !are_alike(x, y)) continue;
        const DevicePair pair{x.data, y.data, x.stream, y.stream, x.items, x.dtype, &rule_of(x.dtype)};
        if (!DevicePairs::takes(pair) || !queue_->takes(x.device)) continue;
        std::optional<nb::gil_scoped_release> unlocked;
        if (queue_->is_full(x.device)) unlocked.emplace();
        queue_->add(seen_ | (in_columns(x) ? kInColumns : 0), x.device, pair);
        started_[seen_] = 1;
    }
    return true;
}

bool StartedPairs::fits(const FieldList& a, const FieldList& b, const std::vector<ListRule>& rules,
                        const ChosenRules& chosen) const {
    if (!queue_ || !lists_[0].is_valid() || nb::cast<const FieldList*>(lists_[0]) != &a ||
        nb::cast<const FieldList*>(lists_[1]) != &b)
        return false;
    std::vector<std::array<bool, 2>> same;  // of each rule: as of others, as of floating
    for (const ListRule& rule : rules)
        same.push_back({is_same(rule.rule, of_others_), is_same(rule.rule, of_floating_)});
    for (std::size_t i = 0; i < chosen.size(); ++i) {
        if (chosen[i] == kLeftOut) return false;
        const std::size_t floating = is_floating(scalar_type(a.fields()[i].dtype)) ? 1 : 0;
        if (!same.at(static_cast<std::size_t>(chosen[i]))[floating]) return false;
    }
    return true;
}

bool StartedPairs::leave() {
    if (!queue_ || !lists_[0].is_valid()) return false;
    for (const nb::object& side : lists_) {
        const auto& list = *nb::cast<const FieldList*>(side);
        if (!list.rest().empty() || list.fields().size() != size()) return false;
        // The first place is one of rows; and IDs of particles may lie in another order.
        for (const TakenField& field : list.fields()) {
            const bool may_be_ids = !is_floating(scalar_type(field.dtype)) && field.shape.size() == 1;
            if (may_be_ids || in_columns(field)) return false;
        }
    }
    const nb::gil_scoped_release unlocked;
    is_left_ = queue_->led();
    return is_left_;
}

void StartedPairs::check(std::size_t count) const {
    if (!is_left_) return;
    for (std::size_t at = 0; at < count; ++at) {
        if (!results_.has(at))
            raise(error_ ? *error_ : Error{ErrorCode::internal, "a pair of arrays has no result"});
    }
}

void StartedPairs::finish() {
    const auto run = [&] {
        const nb::gil_scoped_release unlocked;
        auto polled = std::chrono::steady_clock::now();
        queue_->finish([&] {
            const auto now = std::chrono::steady_clock::now();
            if (!poll_ || now - polled < kPollInterval) return true;
            polled = now;
            if (poll_(0, 1)) return true;
            interrupted_ = true;
            return false;
        });
        error_ = queue_->error();
        queue_.reset();
    };
    run();
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    if (interrupted_) results_.interrupt();
}

void StartedPairs::end() {
    if (!queue_) return;
    const nb::gil_scoped_release unlocked;
    queue_.reset();
}

void StartedPairs::take(const FoundPairs& found) {
    const std::lock_guard lock(results_lock_);
    results_.expect((found.numbers.back() & ~kInColumns) + 1);
    for (std::size_t i = 0; i < found.numbers.size(); ++i) {
        const std::size_t at = found.numbers[i] & ~kInColumns;
        const DevicePair& pair = found.pairs[i];
        const DevicePairResult& result = found.of(i);
        // Devices tell the first places as elements lie.
        if (result.found.stats.max_rel_at != kNowhere && at != found.numbers[i]) continue;
        const ComparedElements compared{result, found.device, found.reason, found.seconds(i)};
        if (!like_ || like_->device != *found.device) {
            if (!take_first(pair, compared)) continue;
        } else {
            take_compared(pair.dtype, pair.items, *pair.rule, compared, *like_);
        }
        results_.put(at, *like_, pair.dtype);
    }
}

bool StartedPairs::take_first(const DevicePair& pair, const ComparedElements& compared) {
    DeviceArray array;
    array.dtype = pair.dtype;
    array.shape = {pair.items};
    DeviceSource source(array);
    CompareOptions own = options_;
    own.rule = *pair.rule;
    auto result = compare_field({&source, nullptr, 0}, {&source, nullptr, 0}, own, &compared);
    if (!result) return false;
    like_ = std::move(*result);
    return true;
}

void define_started_pairs(nb::module_& m) {
    nb::class_<StartedPairs>(m, "StartedPairs",
                             "Pairs of arrays on devices that are compared already; reading only, so that "
                             "they may be forgotten.")
        .def("__len__", &StartedPairs::size)
        .def(
            "leave", &StartedPairs::leave,
            "Leaves the work to the devices: later work of the arrays' streams may change the arrays. False: "
            "it is not left, as something would have to be looked at again.")
        .def("is_done", &StartedPairs::is_done, "Whether devices have done what was begun.");
    m.def(
        "start_lists", &start_lists, "a"_a.none(), "b"_a.none(), "flatten"_a, "on_devices"_a, "of_floating"_a,
        "of_others"_a, "options"_a, "may_leave"_a = false,
        nb::sig("def start_lists(a: object, b: object, flatten: Callable[[str, object], dict[str, object]], "
                "on_devices: bool, of_floating: Rule, of_others: Rule, options: CompareOptions, may_leave: "
                "bool = "
                "False) -> "
                "tuple[FieldList | None, FieldList | None, StartedPairs | None]"),
        "FieldList.of_arrays of both containers; pairs on devices are compared from when they are known. "
        "of_floating, of_others: the rules that will be chosen for floating-point numbers and for others; "
        "options: those of compare_lists. may_leave: leave() follows.");
}

}  // namespace twinrun
