// SPDX-License-Identifier: Apache-2.0
#include "oranges/matrix_market.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

namespace oranges {

namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f'; }

class Lines {
   public:
    explicit Lines(std::string_view text) : rest_(text) {}

    // The next line's words, at most kMost of them and one more where there are; nothing at the
    // end.
    static constexpr std::size_t kMost = 5;
    std::optional<std::span<const std::string_view>> next() {
        if (rest_.empty()) return std::nullopt;
        ++number_;
        const std::size_t end = std::min(rest_.find('\n'), rest_.size());
        std::string_view line = rest_.substr(0, end);
        rest_.remove_prefix(std::min(end + 1, rest_.size()));
        std::size_t count = 0;
        for (std::size_t i = 0; count < words_.size(); ++count) {
            while (i < line.size() && is_space(line[i]))
                ++i;
            if (i == line.size()) break;
            const std::size_t begin = i;
            while (i < line.size() && !is_space(line[i]))
                ++i;
            words_[count] = line.substr(begin, i - begin);
        }
        return std::span(words_).first(count);
    }

    // Skips lines that are empty or begin with %.
    std::optional<std::span<const std::string_view>> next_data() {
        for (;;) {
            const auto words = next();
            if (!words || (!words->empty() && words->front().front() != '%')) return words;
        }
    }

    [[noreturn]] void fail(const std::string& what) const {
        throw std::runtime_error("line " + std::to_string(number_) + ": " + what);
    }

   private:
    std::string_view rest_;
    std::array<std::string_view, kMost + 1> words_;
    std::uint64_t number_ = 0;
};

std::string lower(std::string_view word) {
    std::string result(word);
    for (char& c : result)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return result;
}

// The text as messages show it: without control characters, and shortened.
std::string shown(std::string_view word) {
    std::string result = "'";
    for (const char c : word.substr(0, 40))
        result += c >= ' ' && c <= '~' ? c : '?';
    return result + (word.size() > 40 ? "...'" : "'");
}

std::uint64_t whole(const Lines& lines, std::string_view word, const char* what) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size())
        lines.fail(shown(word) + " is not a number of " + what);
    return value;
}

void check_number(const Lines& lines, std::string_view word) {
    if (word.starts_with('+')) word.remove_prefix(1);
    double value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    // One that is too large or too small for a double is a number still.
    if ((error != std::errc() && error != std::errc::result_out_of_range) || end != word.data() + word.size())
        lines.fail("value " + shown(word) + " is not a number");
}

template <std::size_t kCount>
bool one_of(const std::string& word, const std::array<const char*, kCount>& words) {
    return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

Graph parse_matrix_market(std::string_view text) {
    Lines lines(text);
    const auto banner = lines.next();
    if (!banner || banner->empty() || lower((*banner)[0]) != "%%matrixmarket")
        throw std::runtime_error("not a Matrix Market file: it does not begin with %%MatrixMarket");
    if (banner->size() != 5)
        lines.fail("the banner must be '%%MatrixMarket matrix coordinate KIND SYMMETRY'");
    if (lower((*banner)[1]) != "matrix") lines.fail(shown((*banner)[1]) + " is not a matrix");
    if (lower((*banner)[2]) != "coordinate")
        lines.fail("format " + shown((*banner)[2]) + " has no edges; only 'coordinate' is read");
    const std::string kind = lower((*banner)[3]), symmetry = lower((*banner)[4]);
    if (!one_of(kind, std::array{"pattern", "real", "double", "integer", "complex"}))
        lines.fail("unknown kind of number " + shown(kind));
    if (!one_of(symmetry, std::array{"general", "symmetric", "skew-symmetric", "hermitian"}))
        lines.fail("unknown symmetry " + shown(symmetry));
    const std::size_t values = kind == "pattern" ? 0 : kind == "complex" ? 2 : 1;

    const auto sizes = lines.next_data();
    if (!sizes) lines.fail("the file ends before its sizes");
    if (sizes->size() != 3) lines.fail("must have three sizes: rows, columns, entries");
    const std::uint64_t rows = whole(lines, (*sizes)[0], "rows");
    const std::uint64_t columns = whole(lines, (*sizes)[1], "columns");
    const std::uint64_t entries = whole(lines, (*sizes)[2], "entries");
    if (rows != columns)
        lines.fail("a graph's matrix is square, this one has " + std::to_string(rows) + " rows and " +
                   std::to_string(columns) + " columns");
    if (rows > Graph::kMostVertices)
        lines.fail(std::to_string(rows) + " vertices are too many: at most " +
                   std::to_string(Graph::kMostVertices));
    // Memory is not taken on a few bytes' word. An entry has at least four bytes, so that in such a
    // graph most vertices would have no neighbours.
    if (rows > text.size() + (1u << 20))
        lines.fail(std::to_string(rows) + " vertices are too many for a file of " +
                   std::to_string(text.size()) + " bytes");

    std::vector<Edge> edges;
    edges.reserve(static_cast<std::size_t>(std::min<std::uint64_t>(entries, text.size() / 4)));
    for (std::uint64_t i = 0; i < entries; ++i) {
        const auto words = lines.next_data();
        if (!words)
            lines.fail("the file ends after " + std::to_string(i) + " of " + std::to_string(entries) +
                       " entries");
        if (words->size() != 2 + values)
            lines.fail("an entry of this file has " + std::to_string(2 + values) + " numbers");
        const std::uint64_t row = whole(lines, (*words)[0], "a row"),
                            column = whole(lines, (*words)[1], "a column");
        if (row < 1 || row > rows || column < 1 || column > rows)
            lines.fail("entry (" + std::to_string(row) + ", " + std::to_string(column) +
                       ") is outside the matrix of " + std::to_string(rows) +
                       " rows and columns, which begin at 1");
        for (std::size_t k = 0; k < values; ++k)
            check_number(lines, (*words)[2 + k]);
        edges.push_back({static_cast<Vertex>(row - 1), static_cast<Vertex>(column - 1)});
    }
    if (lines.next_data())
        lines.fail("more entries than the " + std::to_string(entries) + " that were announced");
    return Graph(rows, edges);
}

Graph read_matrix_market(const std::filesystem::path& path) {
    struct CloseFile {
        void operator()(std::FILE* file) const noexcept { std::fclose(file); }
    };
    const std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "rb"));
    if (!file) throw std::runtime_error(path.string() + ": " + std::strerror(errno));
    std::string text;
    std::vector<char> piece(std::size_t{1} << 20);
    while (const std::size_t got = std::fread(piece.data(), 1, piece.size(), file.get()))
        text.append(piece.data(), got);
    if (std::ferror(file.get())) throw std::runtime_error(path.string() + ": " + std::strerror(errno));
    try {
        return parse_matrix_market(text);
    } catch (const std::runtime_error& error) {
        throw std::runtime_error(path.string() + ": " + error.what());
    }
}

}  // namespace oranges
