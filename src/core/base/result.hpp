// Result<T>: a value or an error. The core neither throws across its interfaces, nor prints, nor
// aborts. An error says what happened, where, and what to do; the caller decides what becomes of
// it.
#pragma once

#include <new>
#include <string>
#include <utility>
#include <variant>

namespace twinrun {

enum class ErrorCode {
    invalid_argument = 1,  // the caller asked for something that has no meaning
    not_found,             // a file, step, rank or field that is not there
    io,                    // the operating system refused: the message holds its words
    no_space,              // storage or quota is full
    damaged,               // bytes from outside contradict their checksum or their format
    unsupported,           // a newer format version, or something this build lacks
    stale,                 // metadata that is older than the data it describes
    mismatch,              // two things that cannot be compared: dtype, shape, fields
    out_of_memory,
    interrupted,  // the caller's interrupt check said stop
    internal,     // a defect in twinrun
    other_rank,   // this rank is well, another one is not: none did what was asked
};

struct [[nodiscard]] Error {
    ErrorCode code = ErrorCode::internal;
    std::string message;

    // Puts the place in front: "runs/a/x.npy: truncated: ...".
    Error at(const std::string& where) && {
        message = where + ": " + message;
        return std::move(*this);
    }
};

struct Unit {};

template <class T = Unit>
class [[nodiscard]] Result {
   public:
    Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
    Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

    bool ok() const { return state_.index() == 0; }
    explicit operator bool() const { return ok(); }

    T& value() & { return *std::get_if<0>(&state_); }
    const T& value() const& { return *std::get_if<0>(&state_); }
    T&& value() && { return std::move(*std::get_if<0>(&state_)); }
    T& operator*() & { return value(); }
    const T& operator*() const& { return value(); }
    T* operator->() { return &value(); }
    const T* operator->() const { return &value(); }

    const Error& error() const& { return *std::get_if<1>(&state_); }
    Error&& error() && { return std::move(*std::get_if<1>(&state_)); }

   private:
    std::variant<T, Error> state_;
};

inline Result<> success() { return Unit{}; }

#define TWR_JOIN2(a, b) a##b
#define TWR_JOIN(a, b) TWR_JOIN2(a, b)
// TWR_TRY(auto x, f()): x is f's value, or the enclosing function returns f's error.
#define TWR_TRY(declaration, expression) TWR_TRY_AS(TWR_JOIN(twr_result_, __LINE__), declaration, expression)
#define TWR_TRY_AS(name, declaration, expression)   \
    auto name = (expression);                       \
    if (!name.ok()) return std::move(name).error(); \
    declaration = std::move(name).value()
// TWR_CHECK(f()): goes on, or the enclosing function returns f's error.
#define TWR_CHECK(expression)                                                                          \
    do {                                                                                               \
        if (auto twr_checked = (expression); !twr_checked.ok()) return std::move(twr_checked).error(); \
    } while (0)

}  // namespace twinrun
