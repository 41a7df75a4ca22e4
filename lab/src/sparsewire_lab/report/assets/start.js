// Fills every place that the page leaves for a picture.

const viewers = { wiring: wiringViewer, glimpses: glimpsesViewer, sorting: sortingViewer,
  chart: chartViewer };

startCopying();
for (const box of document.querySelectorAll("[data-viewer]")) {
  viewers[box.dataset.viewer](box, readData(box.dataset.from));
}
startTheme();
startPrinting();
