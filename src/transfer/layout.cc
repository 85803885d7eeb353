#include <algorithm>

#include "lynx/transfer.h"

namespace lynx {

// The order is that of `here`, then whatever only `there` has.
Status CompareLayouts(const std::vector<LayoutField>& here, const std::vector<LayoutField>& there) {
  std::string differences;
  const auto add = [&differences](const std::string& text) { differences += (differences.empty() ? "" : "; ") + text; };
  const auto find = [](const std::vector<LayoutField>& fields, const std::string& name) {
    const auto it = std::find_if(fields.begin(), fields.end(), [&](const auto& field) { return field.name == name; });
    return it == fields.end() ? nullptr : &*it;
  };
  for (const LayoutField& field : here) {
    const LayoutField* other = find(there, field.name);
    if (other == nullptr) {
      add(field.name + " differs: here " + field.value + ", there missing");
    } else if (other->value != field.value) {
      add(field.name + " differs: here " + field.value + ", there " + other->value);
    }
  }
  for (const LayoutField& field : there) {
    if (find(here, field.name) == nullptr) add(field.name + " differs: here missing, there " + field.value);
  }
  return differences.empty() ? Ok() : Unsupported(differences);
}

}  // namespace lynx
