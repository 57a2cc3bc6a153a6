#include "sketch/proof.hpp"

#include "element/tolerance.hpp"

namespace twinrun {

std::string why_not_staged(const FieldMetadata& a, const FieldMetadata& b, Method method,
                           const DifferenceRule& rule) {
    if (a.settings.kind != b.settings.kind) return "the runs' digests are of different kinds";
    if (method == Method::published && a.settings.kind != DigestKind::published)
        return "the metadata holds no published digests";
    if (a.settings.chunk_bytes != b.settings.chunk_bytes)
        return "the runs' metadata have different chunk sizes";
    if (a.settings.tolerance != b.settings.tolerance)
        return "the runs' metadata were made for different tolerances";
    if (a.settings.rule != b.settings.rule) return "the runs' metadata have residues of different widths";
    if (a.order != b.order) return "the runs' arrays are stored in different orders";
    if (!rule.nan_equal && (a.counts.nans != 0 || b.counts.nans != 0)) {
        return "there are NaNs, which are not to be taken for equal";
    }
    if (!rule.nan_equal && a.settings.kind == DigestKind::published)
        return "published digests do not count NaNs";
    if (a.settings.kind == DigestKind::published) {
        if (rule.tolerance.atol < a.settings.tolerance.atol)
            return "the metadata was made for a wider tolerance";
        return {};
    }
    if (!proof_reach(a.settings.rule, a.settings.tolerance, rule.tolerance).usable) {
        return "the metadata was made for a wider tolerance than the one asked for";
    }
    return {};
}

}  // namespace twinrun
