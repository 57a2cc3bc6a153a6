// twinrun, from C++17 or newer: the C interface with owning classes, types and exceptions.
// twinrun.h documents each function.
//
//     twr::Run run("runs/a", twr::Settings{{"atol", "1e-6"}});
//     run.protect("x", x);                         // std::vector, std::span, an array, ...
//     run.protect("grid", grid, {rows, columns});  // a pointer and a shape
//     for (...) run.capture(step);
//     run.close();
//
// Header only; link twinrun::twinrun. A protected array must keep its address: protect it again
// after a reallocation.
#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#if __cplusplus >= 202002L
#include <version>
#ifdef __cpp_lib_ranges
#include <ranges>
#endif
#endif
#if __has_include(<stdfloat>) && __cplusplus > 202002L
#include <stdfloat>
#endif

#include "twinrun.h"

namespace twr {

// ---- version ----

// The version of these headers, and of the library, which may be newer: 10000 major + 100 minor +
// patch.
inline constexpr int kVersionNumber = TWINRUN_VERSION_NUMBER;
[[nodiscard]] inline int version_number() noexcept { return twr_version_number(); }
// The library's version, as "0.1.0".
[[nodiscard]] inline std::string version() { return twr_version(); }

// ---- errors ----

// Thrown for every status except TWR_OK. what(): the text of twr_error_message(): what happened,
// where, and what to do.
class Error : public std::runtime_error {
   public:
    Error(int code, const std::string& message) : std::runtime_error(message), code_(code) {}
    [[nodiscard]] int code() const noexcept { return code_; }  // twr_status

   private:
    int code_;
};

// Success, with a condition to report. TWR_DIVERGED: the captured step differs from the reference,
// and stop_on_divergence is set.
class Diverged : public Error {
   public:
    using Error::Error;
};
// TWR_STEP_LOST: an earlier step could not be committed. A program that can do without that step
// catches this and goes on.
class StepLost : public Error {
   public:
    using Error::Error;
};

namespace detail {
// As a C string. Throws for a text that holds a zero byte: C would cut it there, and it would name
// something different.
inline const char* text(const std::string& words) {
    if (words.find('\0') != std::string::npos) {
        throw Error(TWR_ERROR_INVALID_ARGUMENT,
                    "'" + std::string(words.c_str()) + "': a name or path holds a zero byte after that");
    }
    return words.c_str();
}
}  // namespace detail

// Throws for every status except TWR_OK, with the message of this thread's last call.
inline void check(int status) {
    switch (status) {
        case TWR_OK: return;
        case TWR_DIVERGED: throw Diverged(status, twr_error_message());
        case TWR_STEP_LOST: throw StepLost(status, twr_error_message());
        default: throw Error(status, twr_error_message());
    }
}

// ---- types of elements ----

// The dtype of a C++ type: specialise it for types that hold the same bits (static constexpr int
// value).
template <class T, class = void>
struct DTypeOf {};
template <class T>
struct DTypeOf<T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool> && sizeof(T) <= 8>> {
    static constexpr int kBase = std::is_signed_v<T> ? TWR_I8 : TWR_U8;
    static constexpr int value = kBase + (sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3);
};
template <class T>
struct DTypeOf<T, std::enable_if_t<std::is_enum_v<T>>> : DTypeOf<std::underlying_type_t<T>> {};
template <>
struct DTypeOf<bool> {
    static_assert(sizeof(bool) == 1);
    static constexpr int value = TWR_BOOL;
};
template <>
struct DTypeOf<float> {
    static constexpr int value = TWR_F32;
};
template <>
struct DTypeOf<double> {
    static constexpr int value = TWR_F64;
};
template <>
struct DTypeOf<std::complex<float>> {
    static constexpr int value = TWR_C64;
};
template <>
struct DTypeOf<std::complex<double>> {
    static constexpr int value = TWR_C128;
};
#ifdef __STDCPP_FLOAT16_T__
template <>
struct DTypeOf<std::float16_t> {
    static constexpr int value = TWR_F16;
};
#endif
#ifdef __STDCPP_BFLOAT16_T__
template <>
struct DTypeOf<std::bfloat16_t> {
    static constexpr int value = TWR_BF16;
};
#endif
#ifdef __STDCPP_FLOAT32_T__
template <>
struct DTypeOf<std::float32_t> {
    static constexpr int value = TWR_F32;
};
#endif
#ifdef __STDCPP_FLOAT64_T__
template <>
struct DTypeOf<std::float64_t> {
    static constexpr int value = TWR_F64;
};
#endif

namespace detail {

template <class T, class = void>
struct HasDType : std::false_type {};
template <class T>
struct HasDType<T, std::void_t<decltype(DTypeOf<T>::value)>> : std::true_type {};

template <class T>
constexpr int dtype() {
    static_assert(!std::is_const_v<T>, "twinrun: restore writes protected arrays, so they cannot be const");
    static_assert(std::is_const_v<T> || HasDType<T>::value,
                  "twinrun: no dtype for this type; specialise twr::DTypeOf for it");
    return DTypeOf<T>::value;
}

// std::mdspan and similar types: extent(r), stride(r) in items, data_handle(), rank().
template <class View, class = void>
struct IsView : std::false_type {};
template <class View>
struct IsView<View, std::void_t<decltype(std::declval<const View&>().extent(0)),
                                decltype(std::declval<const View&>().stride(0)),
                                decltype(*std::declval<const View&>().data_handle()), decltype(View::rank())>>
    : std::true_type {};

// One-dimensional, in one piece: std::data and std::size.
template <class Range, class = void>
struct IsContiguous : std::false_type {};
template <class Range>
struct IsContiguous<Range, std::void_t<decltype(*std::data(std::declval<Range&>())),
                                       decltype(std::size(std::declval<Range&>()))>> : std::true_type {};

// Whether the elements outlive the object that was passed.
template <class Range>
constexpr bool stays() {
#if defined(__cpp_lib_ranges)
    return std::is_lvalue_reference_v<Range> || std::ranges::enable_borrowed_range<std::remove_cv_t<Range>>;
#else
    return std::is_lvalue_reference_v<Range>;
#endif
}

}  // namespace detail

// ---- settings ----

// By the names in docs/reference/capture.md.
class Settings {
   public:
    Settings() { check(twr_settings_create(&settings_)); }
    // Settings{{"atol", "1e-6"}, {"mode", "digests"}}
    Settings(std::initializer_list<std::pair<std::string, std::string>> values) : Settings() {
        for (const auto& [name, value] : values)
            set(name, value);
    }
    Settings(Settings&& other) noexcept : settings_(std::exchange(other.settings_, nullptr)) {}
    Settings& operator=(Settings&& other) noexcept {
        std::swap(settings_, other.settings_);
        return *this;
    }
    ~Settings() { twr_settings_destroy(settings_); }

    Settings& set(const std::string& name, const std::string& value) {
        check(twr_settings_set(settings_, detail::text(name), detail::text(value)));
        return *this;
    }
    // Lines "name = value"; # begins a comment.
    Settings& load(const std::string& path) {
        check(twr_settings_load(settings_, detail::text(path)));
        return *this;
    }
    [[nodiscard]] const twr_settings* get() const noexcept { return settings_; }

   private:
    twr_settings* settings_ = nullptr;
};

// ---- arrays ----

enum class Order : int { row_major = TWR_ROW_MAJOR, column_major = TWR_COLUMN_MAJOR };

// Optional properties of an array: see twr_array.
struct ArrayOptions {
    // The order in which items are kept; without strides also their order in memory. Unset: their
    // order in memory.
    std::optional<Order> order = {};
    std::vector<std::uint64_t> global_shape = {};  // both, or neither
    std::vector<std::uint64_t> global_offset = {};
    std::optional<double> atol = {};  // the array's own tolerance, if one of them is set
    std::optional<double> rtol = {};
    std::string ids = {};
    int device = TWR_DETECT;
    void* stream = nullptr;
};

// An array of any layout. strides: bytes, one for each dimension; empty: dense, in the order of the
// options.
struct Array {
    void* data = nullptr;
    int dtype = TWR_F64;
    std::vector<std::uint64_t> shape = {};
    std::vector<std::int64_t> strides = {};
};

namespace detail {

// The order of an array in memory: column-major if its strides ascend.
inline Order order_of(const Array& array) {
    std::int64_t last = 0;
    bool ascending = true;
    std::size_t several = 0;  // dimensions of more than one item
    for (std::size_t r = 0; r < array.strides.size(); ++r) {
        if (array.shape[r] <= 1) continue;
        const std::int64_t distance = array.strides[r] < 0 ? -array.strides[r] : array.strides[r];
        ascending = ascending && distance >= last;
        last = distance;
        ++several;
    }
    return ascending && several > 1 ? Order::column_major : Order::row_major;
}

// The array as the C interface takes it. It points into what is given.
inline twr_array described(const std::string& name, const Array& array, const ArrayOptions& options) {
    if (!array.strides.empty() && array.strides.size() != array.shape.size()) {
        throw Error(TWR_ERROR_INVALID_ARGUMENT, "array '" + name + "': strides are not one a dimension");
    }
    const bool placed = !options.global_shape.empty() || !options.global_offset.empty();
    if (placed && (options.global_shape.size() != array.shape.size() ||
                   options.global_offset.size() != array.shape.size())) {
        throw Error(TWR_ERROR_INVALID_ARGUMENT,
                    "array '" + name + "': global_shape and global_offset are not one a dimension");
    }
    twr_array given = TWR_ARRAY_INIT;
    given.name = detail::text(name);
    given.data = array.data;
    given.dtype = array.dtype;
    given.order = static_cast<int>(options.order.value_or(detail::order_of(array)));
    given.dimensions = static_cast<int>(array.shape.size());
    given.shape = array.shape.data();
    given.strides = array.strides.empty() ? nullptr : array.strides.data();
    given.global_shape = placed ? options.global_shape.data() : nullptr;
    given.global_offset = placed ? options.global_offset.data() : nullptr;
    if (options.atol || options.rtol) {
        given.atol = options.atol.value_or(0.0);
        given.rtol = options.rtol.value_or(0.0);
    }
    given.ids = options.ids.empty() ? nullptr : detail::text(options.ids);
    given.device = options.device;
    given.stream = options.stream;
    return given;
}

}  // namespace detail

struct Divergence {
    std::int64_t step = 0;
    int rank = 0;
    std::string field;
    // The item of the flattened array at which the first chunk begins that is not proven equal.
    std::uint64_t first_item = 0;
    std::uint64_t chunks = 0;  // chunks of this field that are not proven equal
    std::uint64_t chunks_in_all = 0;
    std::string reason;  // "", or why the field could not be compared
};

// ---- a run ----

// Used by one thread at a time. Functions that are [collective] in twinrun.h are so here. close()
// is one of them, and so is the destructor of a run that was not closed.
class Run {
   public:
    explicit Run(const std::string& path) { check(twr_open(&run_, detail::text(path), nullptr)); }
    Run(const std::string& path, const Settings& settings) {
        check(twr_open(&run_, detail::text(path), settings.get()));
    }
    Run(const std::string& path, const Settings& settings, const twr_comm& comm) {
        check(twr_open_comm(&run_, detail::text(path), settings.get(), &comm));
    }
    // Takes ownership of a run that another function opened (twr_open_mpi).
    explicit Run(twr_run* run) noexcept : run_(run) {}
    Run(Run&& other) noexcept
        : run_(std::exchange(other.run_, nullptr)),
          before_(std::exchange(other.before_, nullptr)),
          listener_(std::move(other.listener_)) {}
    Run& operator=(Run&& other) noexcept {
        std::swap(run_, other.run_);
        std::swap(before_, other.before_);
        std::swap(listener_, other.listener_);
        return *this;
    }
    // As close(), but ignores errors.
    ~Run() { static_cast<void>(twr_close(run_)); }

    // Waits until all that was captured is committed. The run is over, also after an exception.
    void close() {
        const int status = twr_close(std::exchange(run_, nullptr));
        check(status);
        rethrow();
    }
    [[nodiscard]] twr_run* get() const noexcept { return run_; }

    // ---- protect ----

    void protect(const std::string& name, const Array& array, const ArrayOptions& options = {}) {
        const twr_array given = detail::described(name, array, options);
        check(twr_protect_array(run_, &given));
    }

    // A dense array at a pointer. The shape in braces may be of any one integer type.
    template <class T>
    void protect(const std::string& name, T* data, const std::vector<std::uint64_t>& shape,
                 const ArrayOptions& options = {}) {
        protect(name, Array{data, detail::dtype<T>(), shape, {}}, options);
    }
    template <class T, class Integer>
    void protect(const std::string& name, T* data, std::initializer_list<Integer> shape,
                 const ArrayOptions& options = {}) {
        protect(name, data, std::vector<std::uint64_t>(shape.begin(), shape.end()), options);
    }

    // std::vector, std::array, std::span, T[n], ...: one dimension. Temporary objects are refused,
    // because their elements would not outlive the call.
    template <class Range, std::enable_if_t<detail::IsContiguous<Range>::value && detail::stays<Range>() &&
                                                !detail::IsView<std::remove_reference_t<Range>>::value,
                                            int> = 0>
    void protect(const std::string& name, Range&& range, const ArrayOptions& options = {}) {
        using T = std::remove_reference_t<decltype(*std::data(range))>;
        const auto size = static_cast<std::uint64_t>(std::size(range));
        protect(name, Array{std::data(range), detail::dtype<T>(), {size}, {}}, options);
    }

    // std::mdspan, or another type with its extent(), stride(), data_handle() and rank().
    template <class View, std::enable_if_t<detail::IsView<View>::value, int> = 0>
    void protect(const std::string& name, const View& view, const ArrayOptions& options = {}) {
        using T = std::remove_reference_t<decltype(*view.data_handle())>;
        Array array{view.data_handle(), detail::dtype<T>(), {}, {}};
        for (std::size_t r = 0; r < View::rank(); ++r) {
            array.shape.push_back(static_cast<std::uint64_t>(view.extent(r)));
            array.strides.push_back(static_cast<std::int64_t>(view.stride(r)) *
                                    static_cast<std::int64_t>(sizeof(T)));
        }
        protect(name, array, options);
    }

    // One value.
    template <class T, std::enable_if_t<detail::HasDType<T>::value, int> = 0>
    void protect(const std::string& name, T& value, const ArrayOptions& options = {}) {
        protect(name, Array{&value, detail::dtype<T>(), {}, {}}, options);
    }

    void unprotect(const std::string& name) { check(twr_unprotect(run_, detail::text(name))); }

    // ---- capture ----

    // Returns when the arrays may change. Throws Diverged and StepLost after the step was taken.
    void capture(std::int64_t step) {
        prepare();
        check(twr_capture(run_, step));
        rethrow();
    }
    void capture(std::int64_t step, const std::vector<std::string>& names) {
        prepare();
        const std::vector<const char*> list = pointers(names);
        check(twr_capture_some(run_, step, list.data(), list.size()));
        rethrow();
    }
    void wait() {
        check(twr_wait(run_));
        rethrow();
    }
    [[nodiscard]] twr_report last_report() const {
        twr_report report{};
        report.size = sizeof report;
        check(twr_last_report(run_, &report));
        return report;
    }
    // The same as a JSON object; "{}" if nothing was captured yet.
    [[nodiscard]] std::string report_json() const { return twr_report_json(run_); }

    // ---- going on from a step ----

    // Unset: no step was completed by every rank.
    [[nodiscard]] std::optional<std::int64_t> latest(std::int64_t not_after = INT64_MAX) const {
        std::int64_t step = 0;
        const int status = twr_latest(run_, not_after, &step);
        if (status == TWR_ERROR_NOT_FOUND) return std::nullopt;
        check(status);
        return step;
    }
    [[nodiscard]] std::uint64_t stored_bytes(std::int64_t step, const std::string& name) const {
        std::uint64_t bytes = 0;
        check(twr_stored_bytes(run_, step, detail::text(name), &bytes));
        return bytes;
    }
    // Names of the arrays of a committed step, in the order of capture.
    [[nodiscard]] std::vector<std::string> stored_names(std::int64_t step) const {
        std::vector<std::string> names;
        check(twr_stored_names(
            run_, step,
            [](void* to, const char* name) {
                static_cast<std::vector<std::string>*>(to)->emplace_back(name);
            },
            &names));
        return names;
    }
    // Steps that are on the node-local tier only.
    [[nodiscard]] std::uint64_t local_steps() const {
        std::uint64_t steps = 0;
        check(twr_local_steps(run_, &steps));
        return steps;
    }
    // Removes this rank's steps from the node-local tier, if all are on the next tier too; close()
    // removes the rest of its part.
    void drop_local() { check(twr_drop_local(run_)); }
    void restore(std::int64_t step) {
        prepare();
        check(twr_restore(run_, step));
    }
    void restore(std::int64_t step, const std::vector<std::string>& names) {
        prepare();
        const std::vector<const char*> list = pointers(names);
        check(twr_restore_some(run_, step, list.data(), list.size()));
    }

    // ---- callbacks ----

    // Unless stop_on_divergence is set, `call` comes from another thread. It must not use this run.
    // An exception that it throws is thrown again by the next capture(), wait() or close().
    void on_divergence(std::function<void(const Divergence&)> call) {
        auto listener = std::make_unique<Listener>();
        listener->call = std::move(call);
        check(twr_on_divergence(run_, listener->call ? &called : nullptr, listener.get()));
        if (listener_) listener->thrown = listener_->thrown;
        listener_ = std::move(listener);
    }

    // Called before arrays are read or written: adapters wait here for their own pending work.
    void before_access(std::function<void()> call) { before_ = std::move(call); }

   private:
    struct Listener {
        std::function<void(const Divergence&)> call;
        std::mutex mutex;
        std::exception_ptr thrown;
    };

    static void called(const twr_divergence* d, void* context) {
        auto* const listener = static_cast<Listener*>(context);
        try {
            listener->call(
                {d->step, d->rank, d->field, d->first_item, d->chunks, d->chunks_in_all, d->reason});
        } catch (...) {
            const std::lock_guard<std::mutex> lock(listener->mutex);
            listener->thrown = std::current_exception();
        }
    }
    void rethrow() {
        if (listener_ == nullptr) return;
        std::exception_ptr thrown;
        {
            const std::lock_guard<std::mutex> lock(listener_->mutex);
            thrown = std::exchange(listener_->thrown, nullptr);
        }
        if (thrown) std::rethrow_exception(thrown);
    }
    void prepare() const {
        if (before_) before_();
    }
    static std::vector<const char*> pointers(const std::vector<std::string>& names) {
        std::vector<const char*> list;
        for (const std::string& name : names)
            list.push_back(detail::text(name));
        if (list.empty()) list.reserve(1);  // so that data() is not null
        return list;
    }

    twr_run* run_ = nullptr;
    std::function<void()> before_;
    std::unique_ptr<Listener> listener_;  // outlives the run
};

}  // namespace twr
