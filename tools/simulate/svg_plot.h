// Draws lines over a logarithmic axis as an SVG picture, one panel below the other.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace kvcachefs {

struct PlotSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x > 0, by x
};

struct PlotPanel {
  std::string title, x_label, y_label;
  std::vector<PlotSeries> series;
};

std::string svg_plot(const std::vector<PlotPanel>& panels);

}  // namespace kvcachefs
