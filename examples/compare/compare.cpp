// Compares two histories: where they first differ, and the largest difference of each field.
//
// usage: compare A B [ATOL]
//
// Exit status: 0 the same, 1 different, 2 something could not be compared, or an error.
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <twinrun/compare.hpp>

int main(int argc, char** argv) try {
    if (argc != 3 && argc != 4) {
        std::cerr << "usage: compare A B [ATOL]\n";
        return 2;
    }
    twr::CompareOptions options;
    if (argc == 4) options.atol = std::stod(argv[3]);
    const twr::Comparison found = twr::compare(argv[1], argv[2], options);

    std::map<std::string, double> largest;
    const auto facts = found.facts();
    for (std::uint64_t i = 0; i < facts.fields; ++i) {
        const twr_field_report field = found.field(i);
        double& most = largest[field.field];
        // A NaN, where not even a bound is known, stays.
        if (std::isnan(field.max_abs_diff) || field.max_abs_diff > most) most = field.max_abs_diff;
    }
    for (const auto& [name, most] : largest)
        std::cout << name << ": |a-b| is at most " << most << '\n';
    for (const std::string& problem : found.problems())
        std::cout << "not compared: " << problem << '\n';
    std::cout << found.verdict_line() << '\n';
    switch (found.verdict()) {
        case twr::Verdict::same: return 0;
        case twr::Verdict::different: return 1;
        case twr::Verdict::incomparable: return 2;
    }
    return 2;
} catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 2;
}
