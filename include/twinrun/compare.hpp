// twinrun, from C++17 or newer: comparison of two runs (compare.h, which says what everything does)
// with owners, types and exceptions.
//
//     const twr::Comparison found = twr::compare("runs/a", "runs/b");
//     if (!found.same()) std::cout << found.verdict_line() << '\n';
//
// A difference is no exception: ask for the verdict. Header only; link twinrun::twinrun.
#pragma once

#include "compare.h"
#include "twinrun.hpp"

namespace twr {

enum class Verdict : int { same = TWR_OK, different = TWR_DIFFERENT, incomparable = TWR_INCOMPARABLE };

// See twr_compare_options.
struct CompareOptions {
    // Unset for all three: the tolerance that a field was captured for.
    std::optional<double> atol = {};
    std::optional<double> rtol = {};
    std::optional<std::int64_t> ulps = {};
    bool nan_differs = false;
    bool tolerate_integers = false;
    bool common = false;
    bool direct = false;  // every element is read
    int device = TWR_DETECT;
    int threads = 0;
    std::uint64_t memory_bytes = 0;

    [[nodiscard]] twr_compare_options get() const {
        twr_compare_options options = TWR_COMPARE_OPTIONS_INIT;
        if (atol) options.atol = asked("atol", *atol);
        if (rtol) options.rtol = asked("rtol", *rtol);
        if (ulps) options.ulps = asked("ulps", *ulps);
        options.nan_differs = nan_differs ? 1 : 0;
        options.tolerate_integers = tolerate_integers ? 1 : 0;
        options.common = common ? 1 : 0;
        options.method = direct ? TWR_METHOD_DIRECT : TWR_METHOD_AUTO;
        options.device = device;
        options.threads = threads;
        options.memory_bytes = memory_bytes;
        return options;
    }

   private:
    // -1 was asked for, and does not mean TWR_AS_CAPTURED here.
    template <class T>
    static T asked(const char* name, T value) {
        if (value < 0)
            throw Error(TWR_ERROR_INVALID_ARGUMENT, std::string("options: ") + name + " is negative");
        return value;
    }
};

// What was found. Texts and arrays of its reports are valid as long as it is.
class Comparison {
   public:
    // Takes over what a function of compare.h gave.
    explicit Comparison(twr_comparison* comparison) noexcept : comparison_(comparison) {}
    Comparison(Comparison&& other) noexcept : comparison_(std::exchange(other.comparison_, nullptr)) {}
    Comparison& operator=(Comparison&& other) noexcept {
        std::swap(comparison_, other.comparison_);
        return *this;
    }
    ~Comparison() { twr_comparison_destroy(comparison_); }

    [[nodiscard]] Verdict verdict() const { return static_cast<Verdict>(facts().verdict); }
    // All was compared, and agrees.
    [[nodiscard]] bool same() const { return verdict() == Verdict::same; }
    [[nodiscard]] twr_comparison_report facts() const {
        twr_comparison_report report{};
        report.size = sizeof report;
        check(twr_comparison_facts(comparison_, &report));
        return report;
    }
    // Of entry `number`, from 0.
    [[nodiscard]] twr_field_report field(std::uint64_t number) const {
        twr_field_report report{};
        report.size = sizeof report;
        check(twr_comparison_field(comparison_, number, &report));
        return report;
    }
    // The first entry that differs. Unset: none does.
    [[nodiscard]] std::optional<twr_field_report> first() const {
        const std::uint64_t number = facts().first_field;
        if (number == TWR_NONE) return std::nullopt;
        return field(number);
    }
    [[nodiscard]] std::vector<std::string> problems() const { return texts(twr_comparison_problem); }
    [[nodiscard]] std::vector<std::string> notes() const { return texts(twr_comparison_note); }
    [[nodiscard]] std::string verdict_line() const { return twr_comparison_verdict(comparison_); }
    [[nodiscard]] std::string json() const {
        const char* text = twr_comparison_json(comparison_);
        if (text == nullptr) throw std::bad_alloc();
        return text;
    }
    [[nodiscard]] twr_comparison* get() const noexcept { return comparison_; }

   private:
    template <class At>
    std::vector<std::string> texts(At at) const {
        std::vector<std::string> all;
        for (std::uint64_t i = 0;; ++i) {
            const char* text = at(comparison_, i);
            if (text == nullptr) return all;
            all.emplace_back(text);
        }
    }
    twr_comparison* comparison_ = nullptr;
};

// Arrays to compare. They must stay where they are, and must not change, while they are compared.
class Arrays {
   public:
    void add(const std::string& name, const Array& array, const ArrayOptions& options = {}) {
        auto own = std::make_unique<Named>(Named{name, array, options, {}});
        own->given = detail::described(own->name, own->array, own->options);
        arrays_.push_back(std::move(own));
    }
    // A dense array at a pointer.
    template <class T>
    void add(const std::string& name, const T* data, const std::vector<std::uint64_t>& shape,
             const ArrayOptions& options = {}) {
        // Only read.
        add(name, Array{const_cast<T*>(data), detail::dtype<T>(), shape, {}}, options);
    }
    // std::vector, std::array, std::span, T[n], ...: one dimension.
    template <class Range, std::enable_if_t<detail::IsContiguous<Range>::value && detail::stays<Range>() &&
                                                !detail::IsView<std::remove_reference_t<Range>>::value,
                                            int> = 0>
    void add(const std::string& name, Range&& range, const ArrayOptions& options = {}) {
        add(name, std::data(range), {static_cast<std::uint64_t>(std::size(range))}, options);
    }
    [[nodiscard]] std::vector<twr_array> get() const {
        std::vector<twr_array> all;
        for (const auto& own : arrays_)
            all.push_back(own->given);
        return all;
    }

   private:
    struct Named {
        std::string name;
        Array array;
        ArrayOptions options;
        twr_array given;
    };
    std::vector<std::unique_ptr<Named>> arrays_;
};

namespace detail {

// Throws unless there is a result.
inline Comparison compared(int status, twr_comparison* found) {
    Comparison comparison(found);
    if (found == nullptr) check(status);
    return comparison;
}

}  // namespace detail

// Two histories; a is the reference.
[[nodiscard]] inline Comparison compare(const std::string& a, const std::string& b,
                                        const CompareOptions& options = {}) {
    twr_comparison* found = nullptr;
    const twr_compare_options given = options.get();
    const int status = twr_compare(detail::text(a), detail::text(b), &given, &found);
    return detail::compared(status, found);
}

// Arrays in memory, by their names.
[[nodiscard]] inline Comparison compare(const Arrays& a, const Arrays& b,
                                        const CompareOptions& options = {}) {
    twr_comparison* found = nullptr;
    const twr_compare_options given = options.get();
    const std::vector<twr_array> of_a = a.get();
    const std::vector<twr_array> of_b = b.get();
    const int status = twr_compare_arrays(of_a.data(), of_a.size(), of_b.data(), of_b.size(), &given, &found);
    return detail::compared(status, found);
}

// The step that this rank captured last, with the reference; by default with the one of the run's
// settings.
[[nodiscard]] inline Comparison compare_step(const Run& run, const std::optional<std::string>& reference = {},
                                             const CompareOptions& options = {}) {
    twr_comparison* found = nullptr;
    const twr_compare_options given = options.get();
    const int status =
        twr_compare_step(run.get(), reference ? detail::text(*reference) : nullptr, &given, &found);
    return detail::compared(status, found);
}

}  // namespace twr
