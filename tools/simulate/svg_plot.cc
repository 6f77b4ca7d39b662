#include "tools/simulate/svg_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

namespace kvcachefs {
namespace {

constexpr double kWidth = 760, kPanelHeight = 420;
constexpr double kLeft = 70, kRight = 150, kTop = 46, kBottom = 56;
constexpr std::array<std::string_view, 8> kColors = {"#1f5fbf", "#d1495b", "#2b8a3e", "#8d5a97",
                                                     "#e08e00", "#00798c", "#6b4f3b", "#555555"};

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      case '"': out += "&quot;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string short_number(double value) {
  if (value >= 1e6) return fmt::format("{:.3g}M", value / 1e6);
  if (value >= 1e3) return fmt::format("{:.3g}K", value / 1e3);
  return fmt::format("{:.3g}", value);
}

// Ticks at 1, 2 and 5 of each decade.
std::vector<double> log_ticks(double low, double high) {
  std::vector<double> ticks;
  for (double decade = std::pow(10, std::floor(std::log10(low))); decade <= high * 1.0001; decade *= 10)
    for (const double factor : {1.0, 2.0, 5.0})
      if (const double tick = decade * factor; tick >= low * 0.9999 && tick <= high * 1.0001) ticks.push_back(tick);
  return ticks;
}

double tick_step(double span) {
  const double raw = span / 6, decade = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (raw <= decade * factor) return decade * factor;
  return decade * 10;
}

class Panel {
 public:
  Panel(const PlotPanel& what, double top) : what_(what), top_(top) {
    bool any = false;
    for (const PlotSeries& series : what.series) {
      for (const auto& [x, y] : series.points) {
        low_ = any ? std::min(low_, x) : x;
        high_ = any ? std::max(high_, x) : x;
        most_ = std::max(most_, y);
        any = true;
      }
    }
    if (high_ <= low_ * 1.0001) {
      low_ /= 2;
      high_ *= 2;
    }
    step_ = tick_step(std::max(most_, 1e-9));
    most_ = std::max(step_, std::ceil(most_ / step_) * step_);
  }

  std::string draw() const {
    std::string out = text(kLeft, top_ + 24, what_.title, "start", 15);
    draw_axes(out);
    for (size_t i = 0; i < what_.series.size(); ++i) draw_series(out, i);
    return out;
  }

 private:
  double x_of(double x) const {
    return kLeft + (kWidth - kLeft - kRight) * std::log(x / low_) / std::log(high_ / low_);
  }
  double y_of(double y) const { return top_ + kTop + (kPanelHeight - kTop - kBottom) * (1 - y / most_); }

  static std::string text(double x, double y, std::string_view what, std::string_view anchor, int size = 12) {
    return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\">{}</text>\n", x, y, anchor,
                       size, escaped(what));
  }
  static std::string line(double x1, double y1, double x2, double y2, std::string_view color) {
    return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x1, y1, x2, y2,
                       color);
  }

  void draw_axes(std::string& out) const {
    const double right = kWidth - kRight, bottom = y_of(0);
    for (double y = 0; y <= most_ * 1.0001; y += step_) {
      out += line(kLeft, y_of(y), right, y_of(y), "#dddddd");
      out += text(kLeft - 8, y_of(y) + 4, fmt::format("{:.4g}", y), "end");
    }
    for (const double x : log_ticks(low_, high_)) {
      out += line(x_of(x), y_of(most_), x_of(x), bottom, "#eeeeee");
      out += text(x_of(x), bottom + 18, short_number(x), "middle");
    }
    out += line(kLeft, bottom, right, bottom, "#333333");
    out += line(kLeft, y_of(most_), kLeft, bottom, "#333333");
    out += text((kLeft + right) / 2, bottom + 40, what_.x_label, "middle");
    const double middle = (y_of(most_) + bottom) / 2;
    out += fmt::format("<text transform=\"translate({:.1f} {:.1f}) rotate(-90)\" text-anchor=\"middle\" "
                       "font-size=\"12\">{}</text>\n",
                       kLeft - 46, middle, escaped(what_.y_label));
  }

  void draw_series(std::string& out, size_t index) const {
    const PlotSeries& series = what_.series[index];
    const std::string_view color = kColors[index % kColors.size()];
    const std::string_view dash = index < kColors.size() ? "" : " stroke-dasharray=\"6 3\"";
    std::string points;
    for (const auto& [x, y] : series.points) points += fmt::format("{:.1f},{:.1f} ", x_of(x), y_of(y));
    out += fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{} points=\"{}\"/>\n", color, dash, points);
    for (const auto& [x, y] : series.points) {
      out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"><title>{}: {} at {}</title></circle>\n",
                         x_of(x), y_of(y), color, escaped(series.name), fmt::format("{:.2f}", y), short_number(x));
    }
    const double y = top_ + kTop + 10 + 20 * static_cast<double>(index), x = kWidth - kRight + 16;
    out += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
                       "stroke-width=\"2\"{}/>\n",
                       x, y, x + 22, y, color, dash);
    out += text(x + 28, y + 4, series.name, "start");
  }

  const PlotPanel& what_;
  double top_;
  double low_ = 1, high_ = 1, most_ = 0, step_ = 1;
};

}  // namespace

std::string svg_plot(const std::vector<PlotPanel>& panels) {
  const double height = kPanelHeight * static_cast<double>(std::max<size_t>(panels.size(), 1));
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" fill=\"#222222\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
      kWidth, height);
  for (size_t i = 0; i < panels.size(); ++i) out += Panel(panels[i], kPanelHeight * static_cast<double>(i)).draw();
  return out + "</svg>\n";
}

}  // namespace kvcachefs
