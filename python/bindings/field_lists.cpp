// Fields by the thousand, of arrays of the caller or of metadata: taken and compared with no work
// of Python for each.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>

#include "engine/batch.hpp"
#include "engine/listed_fields.hpp"
#include "engine/packed_layouts.hpp"
#include "engine/packed_results.hpp"
#include "engine/pair_queue.hpp"
#include "field_list.hpp"
#include "shared.hpp"
#include "source/device_array.hpp"
#include "source/plain_files.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace twinrun {

namespace {

// The results of all fields, in the order of the first run.
class ListResults {
   public:
    explicit ListResults(std::size_t count) : results_(count), failed_(count) {}

    // In the order of fields. names_of_files: names are bytes of files, not texts of Python.
    void describe(const NamedLayout& layout, bool names_of_files) {
        layouts_.add(layout);
        names_of_files_ = names_of_files;
    }
    // Called as compare_fields() calls it.
    void take(std::size_t at, const Result<FieldResult>& result) {
        if (!result) {
            failed_[at] = true;
            if (result.error().code == ErrorCode::interrupted) interrupted_ = true;
            return;
        }
        put(at, *result, layouts_.get(at).dtype);
    }
    void put(std::size_t at, const FieldResult& r, DType dtype) {
        results_.put(at, r);
        bytes_read_ += r.tree.bytes_read + r.sketch.bytes_read + r.elements.bytes_read;
        bytes_ += r.scalars / scalars_per_item(dtype) * item_bytes(dtype);
        if (!r.same()) different_.push_back(at);
    }
    // There are so many fields at least.
    void expect(std::size_t count) {
        results_.expect(count);
        failed_.resize(results_.size());
    }
    [[nodiscard]] bool has(std::size_t at) const { return results_.has(at); }
    // When all were taken. interrupt: the exception that came meanwhile, if there was one; else
    // raises where somebody interrupted it.
    void finish(nb::object interrupt) {
        if (!interrupt.is_valid()) check();
        interrupt_ = std::move(interrupt);
        std::sort(different_.begin(), different_.end());
    }
    void check() const {
        if (interrupted_) raise({ErrorCode::interrupted, "interrupted"});
    }
    // To be raised; None where nobody interrupted it. Gives it away: it would keep alive what it
    // came through.
    [[nodiscard]] nb::object take_interrupt() {
        return interrupt_.is_valid() ? std::exchange(interrupt_, nb::object()) : nb::none();
    }

    // Those of the fields [first, last), none of which failed.
    [[nodiscard]] ListResults part(std::size_t first, std::size_t last) const {
        if (first > last || last > size()) throw nb::index_error();
        ListResults some(last - first);
        for (std::size_t at = first; at < last; ++at) {
            if (!results_.has(at)) throw nb::index_error();
            some.describe(layouts_.get(at), names_of_files_);
        }
        for (std::size_t at = first; at < last; ++at)
            some.take(at - first, results_.get(at));
        return some;
    }

    [[nodiscard]] std::size_t size() const { return results_.size(); }
    [[nodiscard]] const std::vector<std::size_t>& different() const { return different_; }
    [[nodiscard]] std::vector<std::size_t> failed() const {
        std::vector<std::size_t> found;
        for (std::size_t at = 0; at < failed_.size(); ++at) {
            if (failed_[at]) found.push_back(at);
        }
        return found;
    }
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
    [[nodiscard]] std::uint64_t bytes_read() const { return bytes_read_; }
    [[nodiscard]] PyFieldResult at(std::size_t at) const {
        const DType dtype = layout(at).dtype;
        if (!results_.has(at)) throw nb::index_error();
        return {results_.get(at), dtype};
    }
    [[nodiscard]] NamedLayout layout(std::size_t at) const {
        if (at >= layouts_.size()) throw nb::index_error();
        return layouts_.get(at);
    }
    [[nodiscard]] nb::object name(std::size_t at) const {
        const std::string_view text = layout(at).name;
        if (names_of_files_) return file_text(std::string(text));
        return nb::str(text.data(), text.size());
    }

    // Somebody interrupted it.
    void interrupt() { interrupted_ = true; }

    using State = std::tuple<nb::bytes, nb::bytes, std::vector<std::size_t>, std::vector<std::size_t>,
                             std::uint64_t, std::uint64_t, bool>;
    [[nodiscard]] State state() const {
        const auto results = results_.bytes();
        const auto layouts = layouts_.bytes();
        return {nb::bytes(results.data(), results.size()),
                nb::bytes(layouts.data(), layouts.size()),
                different_,
                failed(),
                bytes_,
                bytes_read_,
                names_of_files_};
    }
    static ListResults of(const State& state) {
        const auto bytes = [](const nb::bytes& b) {
            return std::span(static_cast<const std::byte*>(b.data()), b.size());
        };
        const auto& [results, layouts, different, failed, all_bytes, bytes_read, names_of_files] = state;
        ListResults made(0);
        made.results_ = twinrun::take(PackedResults::from(bytes(results)));
        made.layouts_ = twinrun::take(PackedLayouts::from(bytes(layouts)));
        made.failed_.resize(made.results_.size());
        const auto known = [&](std::size_t at) { return at < made.size(); };
        if (made.layouts_.size() != made.size() || !std::ranges::all_of(different, known) ||
            !std::ranges::all_of(failed, known))
            raise({ErrorCode::damaged, "these are not the results of a comparison"});
        for (const std::size_t at : failed)
            made.failed_[at] = true;
        made.different_ = different;
        made.bytes_ = all_bytes;
        made.bytes_read_ = bytes_read;
        made.names_of_files_ = names_of_files;
        return made;
    }

   private:
    PackedResults results_;
    PackedLayouts layouts_;
    std::vector<bool> failed_;
    std::vector<std::size_t> different_;
    std::uint64_t bytes_ = 0;
    std::uint64_t bytes_read_ = 0;
    bool names_of_files_ = false;
    bool interrupted_ = false;
    nb::object interrupt_;
};

// How fields are compared that a rule is for.
struct ListRule {
    DifferenceRule rule;
    bool own_tolerance = false;  // that of the metadata counts
};

bool order_matters(const std::vector<std::uint64_t>& shape) {
    return std::count_if(shape.begin(), shape.end(), [](std::uint64_t n) { return n > 1; }) > 1;
}

constexpr int kLeftOut = -1;  // instead of a rule's number
constexpr auto kPollInterval = std::chrono::milliseconds(50);

// The numbers of the rules of fields of floating-point numbers, and of all others.
struct RulesByKind {
    int of_floating, of_others;
};
// Of each field of a list the number of its rule, kLeftOut for none.
class ChosenRules {
   public:
    using Given = std::variant<RulesByKind, std::vector<int>>;
    ChosenRules(const Given& given, const FieldList& list) : fields_(list.fields()) {
        if (const auto* by_kind = std::get_if<RulesByKind>(&given)) by_kind_ = *by_kind;
        if (const auto* each = std::get_if<std::vector<int>>(&given)) each_ = *each;
        if (!by_kind_ && each_.size() != fields_.size())
            raise({ErrorCode::invalid_argument, "a rule or none for each field"});
    }
    [[nodiscard]] std::size_t size() const { return fields_.size(); }
    int operator[](std::size_t at) const {
        if (!by_kind_) return each_[at];
        return is_floating(scalar_type(fields_[at].dtype)) ? by_kind_->of_floating : by_kind_->of_others;
    }
    [[nodiscard]] std::size_t count() const {
        if (by_kind_) return size();
        return static_cast<std::size_t>(
            std::count_if(each_.begin(), each_.end(), [](int rule) { return rule != kLeftOut; }));
    }

   private:
    const std::vector<TakenField>& fields_;
    std::optional<RulesByKind> by_kind_;
    std::vector<int> each_;
};

// Returns the exception that came meanwhile; invalid: none did. numbers: of the pairs among the
// results. results_lock: of the results, where others add to them too.
nb::object run_list(std::span<const FieldPair> pairs, const CompareOptions& options, ListResults& results,
                    std::span<const std::size_t> numbers, std::mutex& results_lock) {
    const auto run = [&] {
        const nb::gil_scoped_release unlocked;
        compare_fields(pairs, options, [&](std::size_t at, const Result<FieldResult>& result) {
            const std::lock_guard lock(results_lock);
            results.take(numbers[at], result);
        });
    };
    run();
    // An interrupt may come when all is done: nobody was stopped by it then.
    if (PyErr_Occurred() != nullptr) return nb::borrow(nb::python_error().value());
    return {};
}

bool is_same(const DifferenceRule& x, const DifferenceRule& y) {
    return x.tolerance.atol == y.tolerance.atol && x.tolerance.rtol == y.tolerance.rtol &&
           x.nan_equal == y.nan_equal && x.measure.ulps == y.measure.ulps &&
           x.measure.period == y.measure.period && x.measure.components == y.measure.components &&
           x.measure.component_stride == y.measure.component_stride;
}

bool in_columns(const TakenField& field) { return field.fortran_order && order_matters(field.shape); }

// Two dictionaries of arrays that are compared while they are walked: pairs on devices whose names
// are at the same place in both. What the lists are compared with later decides whether the results
// count: they are read only, so that nothing is lost else.
class StartedPairs {
   public:
    StartedPairs(const DifferenceRule& of_floating, const DifferenceRule& of_others,
                 const PyCompareOptions& how)
        : of_floating_(of_floating),
          of_others_(of_others),
          options_(how.options),
          poll_(how.options.stream.poll),
          progress_(how.progress),
          queue_(std::in_place, how.options.device, [this](const FoundPairs& found) { take(found); }) {
        options_.stream.poll = nullptr;  // results may be taken by another thread than Python's
    }
    ~StartedPairs() { end(); }
    StartedPairs(const StartedPairs&) = delete;
    StartedPairs& operator=(const StartedPairs&) = delete;

    // Begins what can be of the fields that were taken since the last call. False: names part from
    // here on.
    bool add(const FieldList& a, const FieldList& b) {
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
    // leads: later work of the arrays' streams waits.
    void start(bool leads) { queue_->start(leads); }
    // The lists, as they stay.
    void hold(nb::object a, nb::object b) { lists_ = {std::move(a), std::move(b)}; }

    // Whether it is these lists that were begun, with these rules.
    [[nodiscard]] bool fits(const FieldList& a, const FieldList& b, const std::vector<ListRule>& rules,
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
    [[nodiscard]] std::size_t size() const {
        return static_cast<std::size_t>(std::count(started_.begin(), started_.end(), 1));
    }
    [[nodiscard]] bool has_started(std::size_t at) const { return at < started_.size() && started_[at] != 0; }
    // What is found, without names; until finish() others may add to it, under this lock.
    ListResults& results() { return results_; }
    std::mutex& results_lock() { return results_lock_; }

    // After start(true), leaves the work to the devices: the arrays may change by later work of
    // their streams. False where anything would have to be looked at again: it is not left then.
    bool leave() {
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
    [[nodiscard]] bool is_left() const { return is_left_; }
    [[nodiscard]] bool is_done() const { return !queue_ || queue_->is_done(); }
    // After finish(): raises where a pair that was left to a device has no result, as its arrays
    // may have changed.
    void check(std::size_t count) const {
        if (!is_left_) return;
        for (std::size_t at = 0; at < count; ++at) {
            if (!results_.has(at))
                raise(error_ ? *error_ : Error{ErrorCode::internal, "a pair of arrays has no result"});
        }
    }

    // Waits, and takes the results. Pairs that have none then are compared by themselves.
    void finish() {
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
    void end() {
        if (!queue_) return;
        const nb::gil_scoped_release unlocked;
        queue_.reset();
    }

   private:
    [[nodiscard]] const DifferenceRule& rule_of(DType dtype) const {
        return is_floating(scalar_type(dtype)) ? of_floating_ : of_others_;
    }

    // Called by the queue, maybe in its own thread, without Python's lock.
    void take(const FoundPairs& found) {
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
    bool take_first(const DevicePair& pair, const ComparedElements& compared) {
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

    // Of the number of a pair whose first place is one of rows.
    static constexpr std::size_t kInColumns = ~(~std::size_t{0} >> 1);

    DifferenceRule of_floating_, of_others_;
    CompareOptions options_;
    std::function<bool(std::uint64_t, std::uint64_t)> poll_;
    nb::object progress_;  // which poll_ calls
    std::array<nb::object, 2> lists_;
    std::size_t seen_ = 0;
    std::vector<std::uint8_t> started_;
    bool is_left_ = false;
    std::mutex results_lock_;
    ListResults results_{0};
    bool interrupted_ = false;
    std::optional<FieldResult> like_;  // of the pair before
    std::optional<Error> error_;
    std::optional<PairQueue> queue_;  // ends before what it uses
};

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

std::optional<ListResults> compare_lists(const FieldList& a, const FieldList& b,
                                         const std::vector<ListRule>& rules, const ChosenRules::Given& given,
                                         const PyCompareOptions& how, StartedPairs* started) {
    if (a.in_order() != b.in_order()) return std::nullopt;
    const auto of_b = matched(std::span<const TakenField>(a.fields()), std::span(b.fields()), a.in_order());
    if (!of_b) return std::nullopt;
    const CompareOptions& options = how.options;
    const ChosenRules chosen(given, a);
    if (started != nullptr && !started->fits(a, b, rules, chosen)) {
        if (started->is_left()) raise({ErrorCode::internal, "other arrays were left to the devices"});
        started = nullptr;
    }
    const std::size_t count = chosen.count();
    ListResults own(0);
    std::mutex own_lock;
    ListResults& results = started == nullptr ? own : started->results();
    std::mutex& results_lock = started == nullptr ? own_lock : started->results_lock();
    {
        const std::lock_guard lock(results_lock);
        results.expect(count);
    }
    ListSources sources(count * 2, options.cache);
    sources.take_from(a.in_memory());
    sources.take_from(b.in_memory());
    std::vector<FieldPair> pairs;
    std::vector<std::size_t> numbers;  // of pairs
    const auto add = [&](std::size_t i, std::size_t at) {
        const ListRule& rule = rules.at(static_cast<std::size_t>(chosen[i]));
        const TakenField& field = a.fields()[i];
        FieldPair& pair = pairs.emplace_back();
        const TakenField& other = b.fields()[(*of_b)[i]];
        pair.a = sources.side(a.files(field), field);
        pair.b = sources.side(b.files(other), other);
        pair.rule = rule.rule;
        if (field.metadata != nullptr && rule.own_tolerance)
            pair.rule.tolerance = field.metadata->settings.tolerance;
        if (in_columns(field)) pair.columns = field.shape;
        numbers.push_back(at);
    };
    if (started == nullptr) {
        pairs.reserve(count);
        numbers.reserve(count);
    }
    for (std::size_t i = 0, at = 0; i < a.fields().size(); ++i) {
        if (chosen[i] == kLeftOut) continue;
        const auto number = static_cast<std::size_t>(chosen[i]);
        const ListRule& rule = rules.at(number);
        const TakenField& field = a.fields()[i];
        Tolerance tolerance = rule.rule.tolerance;
        if (field.metadata != nullptr && rule.own_tolerance) {
            tolerance = field.metadata->settings.tolerance;
            const Tolerance& theirs = b.fields()[(*of_b)[i]].metadata->settings.tolerance;
            if (tolerance.atol != theirs.atol || tolerance.rtol != theirs.rtol) return std::nullopt;
        }
        results.describe({field.text, field.dtype, field.fortran_order, field.shape, number, tolerance},
                         field.metadata != nullptr);
        if (started == nullptr || !started->has_started(i)) add(i, at);
        ++at;
    }
    nb::object interrupt = run_list(pairs, options, results, numbers, results_lock);
    if (started != nullptr) {
        if (interrupt.is_valid()) {
            PyErr_SetObject(interrupt.type().ptr(), interrupt.ptr());
            throw nb::python_error();
        }
        started->finish();
        pairs.clear();
        numbers.clear();
        for (std::size_t i = 0; i < a.fields().size(); ++i) {
            if (started->has_started(i) && !results.has(i)) add(i, i);
        }
        results.check();
        started->check(count);
        interrupt = run_list(pairs, options, results, numbers, results_lock);
    }
    results.finish(std::move(interrupt));
    return std::move(results);
}

// Pairs of fields that Python opened and matched.
class PairList {
   public:
    void add(nb::str name, const std::string& dtype, std::vector<std::uint64_t> shape, bool fortran_order,
             const Source* a, const PyMetadata* a_metadata, std::size_t a_field, const Source* b,
             const PyMetadata* b_metadata, std::size_t b_field, std::size_t rule) {
        FieldPair pair;
        pair.a = side(a, a_metadata, a_field);
        pair.b = side(b, b_metadata, b_field);
        if (fortran_order && order_matters(shape)) pair.columns = shape;
        pairs_.push_back(std::move(pair));
        fields_.push_back({std::move(name), parse_dtype(dtype), fortran_order, std::move(shape), rule});
    }

    ListResults compare(const std::vector<ListRule>& rules, const PyCompareOptions& how) {
        ListResults results(pairs_.size());
        for (std::size_t at = 0; at < pairs_.size(); ++at) {
            const Field& field = fields_[at];
            pairs_[at].rule = rules.at(field.rule).rule;
            Py_ssize_t length = 0;
            const char* name = PyUnicode_AsUTF8AndSize(field.name.ptr(), &length);
            if (name == nullptr) throw nb::python_error();
            results.describe({{name, static_cast<std::size_t>(length)},
                              field.dtype,
                              field.fortran_order,
                              field.shape,
                              field.rule,
                              pairs_[at].rule.tolerance},
                             false);
        }
        std::vector<std::size_t> numbers(pairs_.size());
        std::iota(numbers.begin(), numbers.end(), std::size_t{0});
        std::mutex lock;
        results.finish(run_list(pairs_, how.options, results, numbers, lock));
        return results;
    }
    [[nodiscard]] std::size_t size() const { return pairs_.size(); }

   private:
    struct Field {
        nb::str name;
        DType dtype;
        bool fortran_order;
        std::vector<std::uint64_t> shape;
        std::size_t rule;
    };

    FieldSide side(const Source* source, const PyMetadata* metadata, std::size_t field) {
        FieldSide made;
        if (source != nullptr) {
            made.elements = source->elements.get();
            held_.push_back(*source);
        }
        if (metadata != nullptr) {
            if (field >= metadata->file->directory().fields.size())
                raise({ErrorCode::invalid_argument, "no such field in the metadata"});
            made.metadata = metadata->file.get();
            if (metadata_.empty() || metadata_.back() != metadata->file) metadata_.push_back(metadata->file);
        }
        made.field = field;
        return made;
    }

    std::vector<FieldPair> pairs_;
    std::vector<Field> fields_;
    std::vector<Source> held_;
    std::vector<std::shared_ptr<MetadataFile>> metadata_;
};

}  // namespace

void define_field_lists(nb::module_& m) {
    nb::class_<FieldList>(m, "FieldList", "All fields of a place, taken at once.")
        .def_static(
            "of_arrays", &FieldList::of_arrays, "container"_a.none(), "flatten"_a, "on_devices"_a,
            nb::sig("def of_arrays(container: object, flatten: Callable[[str, object], dict[str, object]], "
                    "on_devices: bool) -> FieldList | None"),
            "The arrays and numbers of a dictionary, nested or not. flatten(name, value) gives the arrays of "
            "any other value by name. on_devices: those on GPUs, too, with PyTorch's current stream. None "
            "where the container is not for a list: see runs.containers.")
        .def_static("of_metadata", &FieldList::of_metadata, "metadata"_a, "has_data"_a,
                    "The fields of metadata, and their data. None where Python has to look at one of them.")
        .def_static("of_history", &FieldList::of_history, "history"_a, "folders"_a, "files"_a,
                    "threads"_a = 0,
                    "The fields of metadata of many places of a history, place after place, and their data. "
                    "They belong to "
                    "those at the same place of another list. None where Python has to look at one of them.")
        .def_prop_ro("counts", &FieldList::counts, "How many fields each place of a history has.")
        .def_prop_ro("bytes_read", &FieldList::bytes_read, "Of each place: what opening its metadata read.")
        .def_static(
            "of_files", &FieldList::of_files, "paths"_a, "names"_a, "format"_a, "without_metadata"_a = true,
            "unique"_a = true, "threads"_a = 0,
            "The arrays of .npy or .safetensors files as they lie there. names: of the array of each "
            ".npy file, what stands before the names of a .safetensors file. None where Python has to "
            "look at one of them, or, without_metadata, where there is metadata beside it. "
            "unique: where a name is there twice; else fields belong to those at the same place.")
        .def_prop_ro("texts", &FieldList::texts,
                     nb::for_getter(nb::sig("def texts(self, /) -> list[dict[str, str] | None]")),
                     "Of each file its texts beside the arrays, None where it has none.")
        .def("arrays", &FieldList::arrays, nb::sig("def arrays(self) -> dict[str, object]"),
             "The arrays by name.")
        .def_prop_ro(
            "rest",
            [](const FieldList& self) {
                nb::dict all;
                for (const auto& other : self.rest())
                    all[other.name] = other.value;
                return all;
            },
            nb::sig("def rest(self) -> dict[str, object]"),
            "The arrays by name that are not in the list, as Python has to look at them.")
        .def_prop_ro(
            "rest_places",
            [](const FieldList& self) {
                std::vector<std::size_t> places;
                for (const auto& other : self.rest())
                    places.push_back(other.place);
                return places;
            },
            "Their numbers among all fields.")
        .def(
            "captured",
            [](nb::object self, const std::map<std::string, Tolerance>& tolerances) {
                return nb::cast<const FieldList&>(self).captured(tolerances, held_by_work(self));
            },
            "tolerances"_a,
            "The fields of the list, as they are captured and sketched; they are valid as long as it is. "
            "tolerances: of fields that have one of their own.")
        .def_prop_ro("any_on_device", &FieldList::any_on_device)
        .def_prop_ro(
            "floating",
            [](const FieldList& self) {
                std::vector<bool> found;
                for (const TakenField& field : self.fields())
                    found.push_back(is_floating(scalar_type(field.dtype)));
                return found;
            },
            "Whether each holds floating-point numbers.")
        .def_prop_ro("names",
                     [](const FieldList& self) {
                         nb::list found;
                         for (const TakenField& field : self.fields()) {
                             if (field.name.is_valid()) {
                                 found.append(field.name);
                             } else if (field.in_file) {
                                 found.append(nb::str(field.text.data(), field.text.size()));
                             } else {
                                 found.append(file_text(std::string(field.text)));
                             }
                         }
                         return nb::typed<nb::list, nb::str>(found);
                     })
        .def("held", &FieldList::held,
             "Where the arrays are, without keeping them alive. None where some are not the caller's own.")
        .def("__len__", [](const FieldList& self) { return self.fields().size(); });
    nb::class_<HeldArrays>(m, "HeldArrays", "Arrays that others keep alive.")
        .def("there", &HeldArrays::there, nb::sig("def there(self) -> dict[str, object] | None"),
             "The arrays by name; None where one is gone.")
        .def(
            "__deepcopy__", [](nb::object self, nb::handle) { return self; },
            nb::sig("def __deepcopy__(self, memo: object) -> HeldArrays"));
    nb::class_<ListResults> results(m, "ListResults", "What comparing two lists found, field by field.");
    const auto add = [&](const char* name, auto get) {
        results.def(
            name, [get](const ListResults& self, std::size_t at) { return get(self.layout(at)); }, "at"_a);
    };
    using L = NamedLayout;
    results.def("__len__", &ListResults::size)
        .def("result", &ListResults::at, "at"_a)
        .def("name", &ListResults::name, "at"_a, nb::sig("def name(self, at: int) -> str"));
    add("dtype", [](const L& l) { return std::string(dtype_name(l.dtype)); });
    add("shape", [](const L& l) { return shape_tuple({l.shape.begin(), l.shape.end()}); });
    add("fortran_order", [](const L& l) { return l.fortran_order; });
    add("rule", [](const L& l) { return l.rule; });
    add("atol", [](const L& l) { return l.tolerance.atol; });
    add("rtol", [](const L& l) { return l.tolerance.rtol; });
    results.def_prop_ro("different", &ListResults::different, "Numbers of the fields that differ, ascending.")
        .def_prop_ro("failed", &ListResults::failed,
                     "Numbers of the fields that could not be compared: comparing each alone says why.")
        .def("take_interrupt", &ListResults::take_interrupt,
             nb::sig("def take_interrupt(self) -> BaseException | None"),
             "The exception that ended the work, to be raised. The fields that were not reached failed.")
        .def("part", &ListResults::part, "first"_a, "last"_a, "Those of the fields [first, last).")
        .def_prop_ro("bytes", &ListResults::bytes, "Of one run.")
        .def_prop_ro("bytes_read", &ListResults::bytes_read)
        .def("__getstate__", &ListResults::state)
        .def("__setstate__", [](ListResults& self, const ListResults::State& state) {
            new (&self) ListResults(ListResults::of(state));
        });
    nb::class_<ListRule>(m, "ListRule", "The rule of fields of a list.")
        .def(nb::init<DifferenceRule, bool>(), "rule"_a, "own_tolerance"_a = false,
             "own_tolerance: that of the metadata counts.");
    nb::class_<RulesByKind>(m, "RulesByKind",
                            "The numbers of the rules of floating-point fields, and of all others.")
        .def(nb::init<int, int>(), "of_floating"_a, "of_others"_a);
    m.def(
        "are_npy",
        [](const std::vector<nb::bytes>& paths) {
            std::vector<std::string> names;
            names.reserve(paths.size());
            for (const nb::bytes& path : paths)
                names.emplace_back(path.c_str(), path.size());
            const StreamOptions every_core;
            std::vector<char> found;
            {
                const nb::gil_scoped_release unlocked;
                found = are_npy(names, worker_count(every_core));
            }
            return std::vector<bool>(found.begin(), found.end());
        },
        "paths"_a, "Whether each of these files begins as .npy files do.");
    m.def("compare_lists", &compare_lists, "a"_a, "b"_a, "rules"_a, "chosen"_a, "options"_a,
          "started"_a.none() = nb::none(),
          "chosen: of each field of a the number of its rule, -1: it is left out; or by kind. started: what "
          "start_lists began, maybe of these lists. None where the lists do not match in names, types and "
          "shapes: Python "
          "then says why.");
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
    nb::class_<PairList>(m, "PairList", "Pairs of fields, which the core compares at once.")
        .def(nb::init<>())
        .def("add", &PairList::add, "name"_a, "dtype"_a, "shape"_a, "fortran_order"_a, "a"_a.none(),
             "a_metadata"_a.none(), "a_field"_a, "b"_a.none(), "b_metadata"_a.none(), "b_field"_a, "rule"_a,
             "The sources are this pair's alone. rule: its number.")
        .def("__len__", &PairList::size)
        .def("compare", &PairList::compare, "rules"_a, "options"_a);
}

}  // namespace twinrun
