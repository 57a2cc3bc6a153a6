// The histogram's tables and the loop that counts for vector kernels: one lookup of 12 bits (sign
// and exponent) and one comparison give a distance its counter.
#include "difference/difference_histogram.hpp"

#include <bit>
#include <limits>

namespace twinrun {

namespace {

HistogramTables make_tables() {
    HistogramTables tables{};
    tables.edges = kDecadeEdges;
    std::size_t edge = 0;  // edges at or below the binade's smallest value
    for (std::uint64_t exponent = 0; exponent < tables.bin.size(); ++exponent) {
        const double smallest = std::bit_cast<double>(exponent << 52);
        while (edge < kDecadeEdges.size() && kDecadeEdges[edge] <= smallest)
            ++edge;
        tables.bin[exponent] = static_cast<std::uint8_t>(1 + edge);
        tables.next[exponent] =
            edge < kDecadeEdges.size() ? kDecadeEdges[edge] : std::numeric_limits<double>::infinity();
    }
    tables.bin[2047] = kHistogramBins - 1;
    return tables;
}

// Counters: bins of scalars within the tolerance, then bins of those that differ.
constexpr std::size_t kCounters = 2 * kHistogramBins;

struct CounterTables {
    std::array<std::uint64_t, 4096> next;  // bits at or above it belong to the next counter
    std::array<std::uint8_t, 4096> counter;
    [[nodiscard]] std::size_t of(std::uint64_t distance) const {
        const std::uint64_t top = distance >> 52;
        return counter[top] + static_cast<std::size_t>(distance >= next[top]);
    }
};

CounterTables make_counter_tables() {
    const HistogramTables& tables = histogram_tables();
    CounterTables made{};
    for (std::size_t top = 0; top < made.next.size(); ++top) {
        const std::size_t exponent = top % 2048;
        const bool differs = top >= 2048;
        made.counter[top] = static_cast<std::uint8_t>(tables.bin[exponent] + (differs ? kHistogramBins : 0));
        made.next[top] = exponent == 2047 ? std::numeric_limits<std::uint64_t>::max()
                                          : std::bit_cast<std::uint64_t>(tables.next[exponent]) |
                                                (differs ? kDiffersBit : 0);
    }
    return made;
}

const CounterTables& counter_tables() {
    static const CounterTables once = make_counter_tables();
    return once;
}

}  // namespace

const HistogramTables& histogram_tables() {
    static const HistogramTables once = make_tables();
    return once;
}

std::size_t histogram_bin(double d) {
    if (d == 0) return 0;
    const HistogramTables& tables = histogram_tables();
    const auto exponent = static_cast<std::size_t>(std::bit_cast<std::uint64_t>(d) >> 52);
    return tables.bin[exponent] + static_cast<std::size_t>(d >= tables.next[exponent] && exponent != 2047);
}

void count_distances(const std::uint64_t* distances, std::size_t n, DifferenceStats* stats) {
    const CounterTables& tables = counter_tables();
    constexpr std::size_t infinite = kHistogramBins - 1;
    const std::uint64_t infinite_before = stats->over[infinite];
    if (n < 128) {  // fewer than clearing and folding private counters is worth
        for (std::size_t i = 0; i < n; ++i) {
            const std::size_t counter = tables.of(distances[i]);
            const bool differs = counter >= kHistogramBins;
            const std::size_t bin = differs ? counter - kHistogramBins : counter;
            ++stats->all[bin];
            stats->over[bin] += differs;
            stats->different += differs;
        }
    } else {
        // Neighbours often share a bin, and a counter's increment waits for the one before: four
        // sets take turns.
        std::array<std::array<std::uint16_t, kCounters>, 4> sets{};
        std::size_t i = 0;
        for (; i + 4 <= n; i += 4) {
            ++sets[0][tables.of(distances[i])];
            ++sets[1][tables.of(distances[i + 1])];
            ++sets[2][tables.of(distances[i + 2])];
            ++sets[3][tables.of(distances[i + 3])];
        }
        for (; i < n; ++i)
            ++sets[0][tables.of(distances[i])];
        std::array<std::uint16_t, kCounters> sums;
        for (std::size_t c = 0; c < kCounters; ++c) {
            sums[c] = static_cast<std::uint16_t>(sets[0][c] + sets[1][c] + sets[2][c] + sets[3][c]);
        }
        std::uint64_t different = 0;
        for (std::size_t bin = 0; bin < kHistogramBins; ++bin) {
            const std::uint64_t over = sums[kHistogramBins + bin];
            stats->all[bin] += sums[bin] + over;
            stats->over[bin] += over;
            different += over;
        }
        stats->different += different;
    }
    stats->infinite += stats->over[infinite] - infinite_before;
}

}  // namespace twinrun
